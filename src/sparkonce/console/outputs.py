"""What the jobs left in Kafka, as another client reads it: kafka-python's KafkaConsumer.

It has nothing in common with either sink but, for ours, the schemas of Kafka's messages. It is
installed with this package, and it reads to a known offset. Kafka's own console consumer is further
from us still, but it only stops after a silence, and a silence proves nothing.
"""

from __future__ import annotations

import json
import time
from contextlib import closing

from kafka import KafkaConsumer, TopicPartition

from sparkonce.console.payments import Balance
from sparkonce.errors import SparkonceError

_READ_TIMEOUT_S = 60.0


class Ends:
    """How much is in a topic, open transactions included; asked over one connection."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self._partitions = [TopicPartition(topic, index) for index in range(partitions)]
        self._consumer = KafkaConsumer(bootstrap_servers=servers)

    def each(self) -> dict[TopicPartition, int]:
        ends: dict[TopicPartition, int] = self._consumer.end_offsets(self._partitions)
        return ends

    def total(self) -> int:
        return sum(self.each().values())

    def close(self) -> None:
        self._consumer.close()


def read_balances(servers: str, topic: str, partitions: int) -> list[Balance]:
    """Every visible balance, in order per partition."""
    # The ends as they are, not as far as they are stable: with a transaction left open the
    # reader below would never get there, and says so.
    with closing(Ends(servers, topic, partitions)) as known:
        ends = known.each()
    reader = KafkaConsumer(
        bootstrap_servers=servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    with closing(reader):
        reader.assign(list(ends))
        reader.seek_to_beginning()
        seen: list[Balance] = []
        deadline_s = time.monotonic() + _READ_TIMEOUT_S
        while any(reader.position(part) < end for part, end in ends.items()):
            if time.monotonic() > deadline_s:
                raise SparkonceError(
                    f"{topic} could not be read to its end within {_READ_TIMEOUT_S:g} s: a "
                    "transaction was left open in it, or this machine is very busy"
                )
            for batch in reader.poll(timeout_ms=500).values():
                seen += [Balance(**json.loads(each.value)) for each in batch]
        return seen
