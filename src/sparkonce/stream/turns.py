"""Turns: tasks of one transaction that write to the same partition do so one after the other.

Brokers number records per producer and partition, whoever sends them. So the desk keeps a queue for
each partition and the next number in it; a task asks for its turn, writes what it has, and gives
the turn back when all of it is acknowledged. Nobody holds one turn while waiting for another, so
nothing can lock up; a task that dies, or holds a turn for too long, dooms the attempt, and those
who wait are told.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sparkonce.encode import EncodedBatch
from sparkonce.errors import AbortableError, BrokerError, SparkonceError
from sparkonce.produce import TransactionalProducer
from sparkonce.produce.identity import Partition
from sparkonce.produce.lane import SEQUENCES, Batch

Tell = Callable[[dict[str, Any]], None]
_HELD_BYTES_MAX: Final = 32 * 1024 * 1024
_NAMED_MAX: Final = 5


@dataclass(slots=True)
class _Queue:
    sequence: int = 0
    holder: str | None = None
    since_s: float = 0.0
    waiting: deque[tuple[str, Tell]] = field(default_factory=deque)


class Queues:
    """The desk's side, for one attempt; for one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: dict[Partition, _Queue] = {}
        self._doom: str | None = None

    def want(self, partition: Partition, who: str, tell: Tell) -> None:
        if self._doom:
            tell({"doom": self._doom})
            return
        queue = self._queues.setdefault(partition, _Queue())
        queue.waiting.append((who, tell))
        self._grant(partition, queue)

    def back(self, partition: Partition, sequence: int) -> None:
        queue = self._queues[partition]
        queue.sequence, queue.holder = sequence, None
        self._grant(partition, queue)

    def doom(self, why: str) -> None:
        """Nobody gets a turn any more."""
        self._doom = self._doom or why
        for queue in self._queues.values():
            while queue.waiting:
                _, tell = queue.waiting.popleft()
                tell({"doom": self._doom})

    def overdue(self, since_s: float) -> str | None:
        """Who has held a turn since then, and where; None once nobody gets turns any more."""
        if self._doom:
            return None
        for (topic, index), queue in self._queues.items():
            if queue.holder is not None and queue.since_s <= since_s:
                return f"{queue.holder} has held its turn at {topic}-{index}"
        return None

    def _grant(self, partition: Partition, queue: _Queue) -> None:
        if queue.holder is None and queue.waiting and not self._doom:
            queue.holder, tell = queue.waiting.popleft()
            queue.since_s = self._clock()
            tell({"turn": partition, "sequence": queue.sequence})


class Turns:
    """A task's side: what it has for each partition, sent when its turn has come."""

    def __init__(self, producer: TransactionalProducer, tell: Tell, wait_s: float) -> None:
        """Nothing is waited for longer than `wait_s`, the time that a transaction has."""
        self._producer = producer
        self._tell = tell
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._waiting: dict[Partition, list[EncodedBatch]] = {}
        self._wanted: set[Partition] = set()
        self._flying: dict[Partition, int] = {}
        self._held_bytes = 0
        self._error: SparkonceError | None = None

    def write(self, batches: Sequence[EncodedBatch]) -> None:
        """Take batches, waiting while there is too much that has not had its turn."""
        self._await(self._has_room)
        with self._changed:
            fresh: list[Partition] = []
            for batch in batches:
                partition = (batch.topic, batch.partition)
                self._waiting.setdefault(partition, []).append(batch)
                self._held_bytes += batch.size_bytes
                if partition not in self._wanted:
                    self._wanted.add(partition)
                    fresh.append(partition)
        for partition in fresh:
            self._say({"want": partition})

    def finish(self) -> None:
        """Until everything is acknowledged."""
        self._await(lambda: not self._held_bytes)

    def hear(self, said: dict[str, Any]) -> None:
        """What the desk says, on a thread of its own."""
        if "doom" in said:
            raise AbortableError(f"another task of this attempt failed: {said['doom']}")
        topic, index = said["turn"]
        self._send((topic, index), said["sequence"])

    def fail(self, error: BaseException) -> None:
        """Whatever it was, the one who waits for turns raises it: there will be no more of them."""
        if not isinstance(error, SparkonceError):
            told = AbortableError(f"turns are not heard of any more: {error!r}")
            told.__cause__ = error
            error = told
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _await(self, is_so: Callable[[], bool]) -> None:
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._error or is_so(), self._wait_s)
            if self._error is not None:
                raise self._error
            if not in_time:
                raise AbortableError(
                    f"no turn came in transaction.timeout.ms={self._wait_s * 1000:.0f} at "
                    f"{self._missing()}, and the driver did not say who holds it: it hangs, or "
                    "can't be reached; look into its log"
                )

    def _missing(self) -> str:
        wanted = sorted(f"{topic}-{index}" for topic, index in self._wanted)
        more = f" and {len(wanted) - _NAMED_MAX} more" if len(wanted) > _NAMED_MAX else ""
        return ", ".join(wanted[:_NAMED_MAX]) + more

    def _send(self, partition: Partition, sequence: int) -> None:
        with self._changed:
            batches = self._waiting.pop(partition)
            self._flying[partition] = len(batches)
        following = (sequence + sum(batch.count for batch in batches)) % SEQUENCES

        def outcome(batch: Batch, error: BrokerError | None, offset: int) -> None:
            try:
                self._ended(partition, following, batch, error)
            except BaseException as failure:  # noqa: BLE001 - told to the one who waits
                self.fail(failure)

        self._producer.produce_turn(batches, sequence, outcome)

    def _ended(
        self, partition: Partition, following: int, batch: Batch, error: BrokerError | None
    ) -> None:
        if error is not None:
            self.fail(error)
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

    def _give_back(self, partition: Partition, sequence: int) -> None:
        with self._changed:
            again = partition in self._waiting
            if not again:
                self._wanted.discard(partition)
        self._say({"back": partition, "sequence": sequence})
        if again:
            self._say({"want": partition})

    def _say(self, what: dict[str, Any]) -> None:
        try:
            self._tell(what)
        except OSError as error:
            raise AbortableError(f"the line to the driver is broken: {error}") from error

    def _has_room(self) -> bool:
        return self._held_bytes < _HELD_BYTES_MAX
