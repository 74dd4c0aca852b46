"""Turns: tasks of one transaction that write to the same partition do so one after the other.

Brokers number records per producer and partition, whoever sends them. So the desk keeps a queue for
each partition and the next number in it; a task asks for its turn, writes what it has, and gives
the turn back when all of it is acknowledged. Nobody holds one turn while waiting for another, so
nothing can lock up; a task that dies dooms the attempt, and those who wait are told.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkonce.encode import EncodedBatch
from sparkonce.errors import AbortableError, BrokerError, SparkonceError
from sparkonce.produce import TransactionalProducer
from sparkonce.produce.identity import Partition
from sparkonce.produce.lane import SEQUENCES, Batch

Tell = Callable[[dict[str, Any]], None]
_HELD_BYTES_MAX = 32 * 1024 * 1024


@dataclass(slots=True)
class _Queue:
    sequence: int = 0
    is_held: bool = False
    waiting: deque[Tell] = field(default_factory=deque)


class Queues:
    """The desk's side, for one attempt; the desk's lock is around every call."""

    def __init__(self) -> None:
        self._queues: dict[Partition, _Queue] = {}
        self._doom: str | None = None

    def want(self, partition: Partition, tell: Tell) -> None:
        if self._doom:
            tell({"doom": self._doom})
            return
        queue = self._queues.setdefault(partition, _Queue())
        queue.waiting.append(tell)
        self._grant(partition, queue)

    def back(self, partition: Partition, sequence: int) -> None:
        queue = self._queues[partition]
        queue.sequence, queue.is_held = sequence, False
        self._grant(partition, queue)

    def doom(self, why: str) -> None:
        """Nobody gets a turn any more."""
        self._doom = self._doom or why
        for queue in self._queues.values():
            while queue.waiting:
                self._tell(queue.waiting.popleft(), {"doom": self._doom})

    def _grant(self, partition: Partition, queue: _Queue) -> None:
        while queue.waiting and not queue.is_held:
            queue.is_held = self._tell(
                queue.waiting.popleft(), {"turn": partition, "sequence": queue.sequence}
            )

    def _tell(self, tell: Tell, what: dict[str, Any]) -> bool:
        try:
            tell(what)
        except OSError:
            return False  # its own line tells that it has gone
        return True


class Turns:
    """A task's side: what it has for each partition, sent when its turn has come."""

    def __init__(self, producer: TransactionalProducer, tell: Tell) -> None:
        self._producer = producer
        self._tell = tell
        self._changed = threading.Condition()
        self._waiting: dict[Partition, list[EncodedBatch]] = {}
        self._wanted: set[Partition] = set()
        self._flying: dict[Partition, int] = {}
        self._held_bytes = 0
        self._error: BaseException | None = None

    def write(self, batches: Sequence[EncodedBatch]) -> None:
        """Take batches, waiting while there is too much that has not had its turn."""
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._raise()
            fresh: list[Partition] = []
            for batch in batches:
                partition = (batch.topic, batch.partition)
                self._waiting.setdefault(partition, []).append(batch)
                self._held_bytes += batch.size_bytes
                if partition not in self._wanted:
                    self._wanted.add(partition)
                    fresh.append(partition)
        for partition in fresh:
            self._tell({"want": partition})

    def finish(self) -> None:
        """Until everything is acknowledged."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._error) or not self._held_bytes)
            self._raise()

    def hear(self, said: dict[str, Any] | None) -> bool:
        """What the desk says, on a thread of its own; whether there is more to hear."""
        try:
            if said is None:
                raise AbortableError("the driver closed the line while turns were waited for")
            if "doom" in said:
                raise AbortableError(f"another task of this attempt failed: {said['doom']}")
            topic, index = said["turn"]
            self._send((topic, index), said["sequence"])
        except SparkonceError as error:
            self._fail(error)
        return said is not None

    def _send(self, partition: Partition, sequence: int) -> None:
        with self._changed:
            batches = self._waiting.pop(partition)
            self._flying[partition] = len(batches)
        following = (sequence + sum(batch.count for batch in batches)) % SEQUENCES

        def outcome(batch: Batch, error: BrokerError | None, offset: int) -> None:
            if error is not None:
                self._fail(error)
                return
            with self._changed:
                self._flying[partition] -= 1
                is_over = self._flying[partition] == 0
            if is_over:
                self._give_back(partition, following)
            # Last: once nothing is held the task may end, and its line with it.
            with self._changed:
                self._held_bytes -= batch.encoded.size_bytes
                self._changed.notify_all()

        self._producer.produce_turn(batches, sequence, outcome)

    def _give_back(self, partition: Partition, sequence: int) -> None:
        with self._changed:
            again = partition in self._waiting
            if not again:
                self._wanted.discard(partition)
        try:
            self._tell({"back": partition, "sequence": sequence})
            if again:
                self._tell({"want": partition})
        except (OSError, ValueError) as error:  # the line is gone, or closed
            self._fail(AbortableError(f"a turn could not be given back: {error}"))

    def _has_room(self) -> bool:
        return bool(self._error) or self._held_bytes < _HELD_BYTES_MAX

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
