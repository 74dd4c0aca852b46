"""Writes the input of a trial into its topic, past all faults, with confluent-kafka.

Where a workload asks for it, in transactions: behind each that is committed comes one that is
aborted, the last one too. Readers of committed records never see these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message, Producer

from sparkonce.errors import SparkonceError
from sparkonce.verify.workload import ABORTED_FROM, Workload

_PARTS: Final = 3
"""Transactions that are committed, and as many that are aborted."""
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Landed:
    """A record that was written: where, and what it is."""

    partition: int
    offset: int
    key: str
    value: str


class Filling:
    """Writes into one topic; may be asked several times, for later portions."""

    def __init__(self, servers: str, topic: str, trial: int, workload: Workload) -> None:
        self._servers = servers
        self._topic = topic
        self._trial = trial
        self._workload = workload
        self._landed: list[Landed] = []
        self._failures: list[str] = []
        self._written = 0
        self.aborted: frozenset[str] = frozenset()
        """Values that nobody must ever see."""

    def first(self) -> list[Landed]:
        """All that the workload has; answers what is to come out, by the cluster's own report."""
        workload = self._workload
        if not workload.aborted:
            return self.more(workload.records)
        producer = self._producer(f"{self._topic}-filling")
        producer.init_transactions(_TIMEOUT_S)
        aborted = [ABORTED_FROM + index for index in range(workload.aborted)]
        for good, bad in zip(_parts(range(workload.records)), _parts(aborted), strict=True):
            producer.begin_transaction()
            self._write(producer, good)
            producer.commit_transaction(_TIMEOUT_S)
            producer.begin_transaction()
            self._write(producer, bad)
            producer.abort_transaction(_TIMEOUT_S)
        self._written = workload.records
        self.aborted = frozenset(self._workload.identity(self._trial, each) for each in aborted)
        return self._take()

    def more(self, count: int) -> list[Landed]:
        """So many behind those that are there."""
        self._write(self._producer(), range(self._written, self._written + count))
        self._written += count
        return self._take()

    def _producer(self, transactional_id: str = "") -> Producer:
        settings = {"bootstrap.servers": self._servers, "acks": "all", "linger.ms": "5"}
        settings["log_level"] = "0"  # what goes wrong is told in its errors
        if transactional_id:
            settings["transactional.id"] = transactional_id
        return Producer(settings)

    def _write(self, producer: Producer, numbers: Iterable[int]) -> None:
        """All of them are in the log behind this, or it raises."""
        workload = self._workload
        for number in numbers:
            key, partition = workload.place(number)
            producer.produce(
                self._topic,
                workload.identity(self._trial, number),
                key=f"k{key}",
                partition=partition,
                on_delivery=self._on_delivery,
            )
            producer.poll(0)
        if producer.flush(_TIMEOUT_S) or self._failures:
            raise SparkonceError(
                f"the input {self._topic} could not be written: {self._failures[:3]}"
            )

    def _on_delivery(self, error: object, message: Message) -> None:
        if error is not None:
            self._failures.append(str(error))
            return
        key, value = message.key(), message.value()
        partition, offset = message.partition(), message.offset()
        assert key is not None and value is not None
        assert partition is not None and offset is not None
        self._landed.append(Landed(partition, offset, key.decode(), value.decode()))

    def _take(self) -> list[Landed]:
        """In the order of the log; without those that were aborted."""
        landed = [each for each in self._landed if each.value not in self.aborted]
        self._landed.clear()
        return sorted(landed, key=lambda each: (each.partition, each.offset))


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Neighbours together; all parts have some, where there are enough."""
    size = -(-len(numbers) // _PARTS)
    for part in range(_PARTS):
        yield numbers[part * size : (part + 1) * size]
