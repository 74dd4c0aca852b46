"""What the cluster itself is asked and told: leaders, coordinators, topics, health.

Stands between LocalKafka's verbs and single questions. Every verb that changes something returns
when all brokers that can be talked to know of the change, so that nobody has to sleep after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.errors import for_code
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

from sparkonce.errors import LocalError
from sparkonce.local.broker import Broker
from sparkonce.local.inquiry import ask

_VERB_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.05

_TRANSACTION_COORDINATOR = 1
_PREFERRED_ELECTION = 0
_METADATA_LOG = "__cluster_metadata"
_NO_ERROR, _NO_COORDINATOR_YET, _ELECTION_NOT_NEEDED = 0, 15, 84


class Cluster:
    """The brokers as one: any of those that answer may be asked."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self._brokers = brokers

    def unhealthy_because(self) -> str | None:
        """The first thing that is wrong with the cluster, or None."""
        node_ids = {broker.node.node_id for broker in self._brokers}
        for broker in self._brokers:
            name = f"broker {broker.node.node_id}"
            if not broker.answers():
                return f"{name} isn't running"
            try:
                metadata = self._metadata_from(broker)
            except OSError as error:
                return f"{name} doesn't answer ({error})"
            unknown = node_ids - {each.node_id for each in metadata.brokers}
            if unknown:
                return f"{name} doesn't see broker {min(unknown)} yet"
            for topic in metadata.topics:
                for each in topic.partitions:
                    if each.leader_id < 0 or set(each.isr_nodes) != set(each.replica_nodes):
                        return (
                            f"{topic.name}-{each.partition_index} has leader {each.leader_id} and "
                            f"in-sync replicas {sorted(each.isr_nodes)} "
                            f"of {sorted(each.replica_nodes)}"
                        )
        return None

    def is_known(self, broker: int) -> bool:
        """Whether every broker that can be asked, itself included, sees this one as alive."""
        return all(
            broker in {seen.node_id for seen in self._metadata_from(each).brokers}
            for each in self._brokers
            if each.answers()
        )

    def finalized_features(self) -> dict[str, int]:
        """Features in force, with their levels, such as `transaction.version`."""
        request = ApiVersionsRequest(
            client_software_name="sparkonce", client_software_version="local"
        )
        answer = self._ask_any(request, version=4)
        return {each.name: each.max_version_level for each in answer.finalized_features}

    def leader_of(self, topic: str, partition: int) -> int:
        """The leader's node id as the cluster sees it now; -1 while there is none."""
        return int(self._partition(topic, partition).leader_id)

    def coordinator_of(self, transactional_id: str) -> int:
        """The node id of the broker that coordinates this transactional id."""
        found: list[Any] = []

        def is_found() -> bool:
            request = FindCoordinatorRequest(
                key_type=_TRANSACTION_COORDINATOR, coordinator_keys=[transactional_id]
            )
            found[:] = self._ask_any(request, version=4).coordinators
            # The first question creates __transaction_state, which takes a moment.
            if found[0].error_code != _NO_COORDINATOR_YET:
                _check(found[0], f"look up the coordinator of '{transactional_id}'")
            return bool(found[0].error_code == _NO_ERROR)

        wait_until(is_found, f"a coordinator of '{transactional_id}' to be chosen")
        return int(found[0].node_id)

    def controller(self) -> int:
        """The node id of the active controller, by its own word."""
        topic = DescribeQuorumRequest.TopicData
        partition = topic.PartitionData(partition_index=0)
        active: list[int] = []

        def is_found() -> bool:
            # Each controller itself: a broker would pass the question on to the one that it knows,
            # and if that is paused, wait for it.
            for broker in (each for each in self._brokers if each.answers()):
                request = DescribeQuorumRequest(
                    topics=[topic(topic_name=_METADATA_LOG, partitions=[partition])]
                )
                answer = ask(broker.node.controller_port, request, version=1)
                (found,) = answer.topics[0].partitions
                if found.error_code == _NO_ERROR:
                    active.append(int(found.leader_id))
            return bool(active)

        wait_until(is_found, "a controller to be active")
        return active[-1]

    def create_topic(
        self, name: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> None:
        topic_type = CreateTopicsRequest.CreatableTopic
        request = CreateTopicsRequest(
            topics=[
                topic_type(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication,
                    assignments=[],
                    configs=[
                        topic_type.CreatableTopicConfig(name=key, value=value)
                        for key, value in config.items()
                    ],
                )
            ],
            timeout_ms=int(_VERB_TIMEOUT_S * 1000),
        )
        for result in self._ask_any(request, version=7).topics:
            _check(result, f"create the topic '{name}'")
        self._wait_for_leaders(name, partitions)

    def add_partitions(self, name: str, partitions: int) -> None:
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(
                    name=name, count=partitions, assignments=None
                )
            ],
            timeout_ms=int(_VERB_TIMEOUT_S * 1000),
            validate_only=False,
        )
        for result in self._ask_any(request, version=2).results:
            _check(result, f"give the topic '{name}' {partitions} partitions")
        self._wait_for_leaders(name, partitions)

    def _wait_for_leaders(self, name: str, partitions: int) -> None:
        def has_leaders(topics: list[Any]) -> bool:
            found = topics[0].partitions
            return len(found) == partitions and all(each.leader_id >= 0 for each in found)

        self._wait_for_metadata(
            name, has_leaders, f"the {partitions} partitions of '{name}' to have leaders"
        )

    def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name)],
            timeout_ms=int(_VERB_TIMEOUT_S * 1000),
        )
        for result in self._ask_any(request, version=6).responses:
            _check(result, f"delete the topic '{name}'")
        self._wait_for_metadata(
            name,
            lambda topics: topics[0].error_code != _NO_ERROR,
            f"the topic '{name}' to be gone",
        )

    def move_leader(self, topic: str, partition: int, to_broker: int) -> None:
        """Make a broker the preferred leader (and a replica, if it wasn't) and elect it.

        Kafka 4.3 keeps a replica that was replaced among the eligible leaders (KIP-966): once
        its only replica has moved, a partition stays without a leader after a kill -9.
        """
        replicas = list(self._partition(topic, partition).replica_nodes)
        others = [each for each in replicas if each != to_broker]
        wanted = [to_broker, *others][: len(replicas)]
        if wanted != replicas:
            self._reassign(topic, partition, wanted)
        request = ElectLeadersRequest(
            election_type=_PREFERRED_ELECTION,
            topic_partitions=[
                ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])
            ],
            timeout_ms=int(_VERB_TIMEOUT_S * 1000),
        )
        for result in self._ask_any(request, version=2).replica_election_results:
            for each in result.partition_result:
                if each.error_code != _ELECTION_NOT_NEEDED:
                    _check(each, f"make broker {to_broker} the leader of {topic}-{partition}")
        self._wait_for_metadata(
            topic,
            lambda topics: _find(topics, partition).leader_id == to_broker,
            f"broker {to_broker} to lead {topic}-{partition}",
        )

    def _reassign(self, topic: str, partition: int, replicas: list[int]) -> None:
        topic_type = AlterPartitionReassignmentsRequest.ReassignableTopic
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=int(_VERB_TIMEOUT_S * 1000),
            topics=[
                topic_type(
                    name=topic,
                    partitions=[
                        topic_type.ReassignablePartition(
                            partition_index=partition, replicas=replicas
                        )
                    ],
                )
            ],
        )
        what = f"move {topic}-{partition} to the brokers {replicas}"
        answer = self._ask_any(request, version=0)
        _check(answer, what)
        for result in answer.responses:
            for each in result.partitions:
                _check(each, what)

        def has_moved(topics: list[Any]) -> bool:
            found = _find(topics, partition)
            # In sync too: a replica that still copies can't be elected.
            return list(found.replica_nodes) == replicas and replicas[0] in found.isr_nodes

        self._wait_for_metadata(topic, has_moved, f"{topic}-{partition} to lie on {replicas}")

    def _metadata_from(self, broker: Broker) -> Any:
        return ask(broker.node.port, MetadataRequest(topics=None), version=12)

    def _partition(self, topic: str, partition: int) -> Any:
        topics = self._ask_any(_metadata_of(topic), version=12).topics
        _check(topics[0], f"look up the topic '{topic}'")
        return _find(topics, partition)

    def _wait_for_metadata(
        self, topic: str, is_there: Callable[[list[Any]], bool], what: str
    ) -> None:
        """Wait until every broker that can be asked sees the change in its own metadata."""

        def everywhere() -> bool:
            answering = [broker for broker in self._brokers if broker.answers()]
            return all(
                is_there(ask(broker.node.port, _metadata_of(topic), version=12).topics)
                for broker in answering
            )

        wait_until(everywhere, what)

    def _ask_any(self, request: Any, version: int) -> Any:
        """Ask the first broker that answers; any of them passes on what is the controller's."""
        silent: list[str] = []
        for broker in self._brokers:
            if broker.answers():
                try:
                    return ask(broker.node.port, request, version, timeout_s=_VERB_TIMEOUT_S)
                except OSError as error:
                    silent.append(f"broker {broker.node.node_id}: {error}")
        raise LocalError(
            f"No broker of the cluster answers ({'; '.join(silent) or 'none is running'}). "
            "Start or resume one first."
        )


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = _VERB_TIMEOUT_S) -> None:
    """Poll a condition; brokers that don't answer count as "not yet"."""
    deadline = time.monotonic() + timeout_s
    last_error: OSError | None = None
    while True:
        try:
            if is_so():
                return
        except OSError as error:
            last_error = error
        if time.monotonic() > deadline:
            why = f" (last: {last_error})" if last_error is not None else ""
            raise LocalError(
                f"Waited {timeout_s:g} s for {what}, in vain{why}. "
                "Look at broker.log in the cluster's folder, and at the load of this machine."
            )
        time.sleep(_POLL_INTERVAL_S)


def _metadata_of(topic: str) -> Any:
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
    )


def _find(topics: list[Any], partition: int) -> Any:
    for each in topics[0].partitions:
        if each.partition_index == partition:
            return each
    raise LocalError(
        f"The topic '{topics[0].name}' has {len(topics[0].partitions)} partitions, so there is "
        f"no partition {partition}."
    )


def _check(result: Any, what: str) -> None:
    if result.error_code != _NO_ERROR:
        reason = getattr(result, "error_message", None) or for_code(result.error_code).__name__
        raise LocalError(f"Kafka refused to {what}: {reason} (error {result.error_code}).")
