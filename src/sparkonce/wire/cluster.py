"""What is known of the cluster: brokers, topics, leaders. A snapshot; a new one replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkonce.wire.address import Address

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Cluster:
    brokers: Mapping[int, Address] = field(default_factory=dict)
    leaders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of each topic, the node id of each partition's leader; `NO_LEADER` while it has none."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Topics asked for that answered with an error code instead."""

    def leader(self, topic: str, partition: int) -> Address | None:
        leaders = self.leaders.get(topic, ())
        return self.brokers.get(leaders[partition]) if partition < len(leaders) else None

    def partition_count(self, topic: str) -> int:
        return len(self.leaders.get(topic, ()))

    def updated(self, answer: Any) -> Cluster:
        """This snapshot with a Metadata answer laid over it; topics not asked for stay."""
        leaders = dict(self.leaders)
        errors = dict(self.errors)
        for topic in answer.topics:
            if topic.error_code or not topic.partitions:
                errors[topic.name] = topic.error_code
                continue
            errors.pop(topic.name, None)
            by_index = {part.partition_index: part.leader_id for part in topic.partitions}
            leaders[topic.name] = tuple(
                by_index.get(index, NO_LEADER) for index in range(max(by_index) + 1)
            )
        brokers = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        return Cluster(brokers, leaders, errors)
