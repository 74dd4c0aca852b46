"""The sender: batches from the caller's thread to the leaders of their partitions.

Its turn is a step of the client's loop, so lanes need no locks. The caller's side (`enqueue`,
`wait_acknowledged`) shares an inbox, the batches without an outcome and the first failure with it,
under one condition. Memory is bounded here: a batch counts from `enqueue` to its outcome.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from sparkonce.errors import (
    AbortableError,
    BrokerError,
    DeliveryFailed,
    FatalError,
    Reaction,
    Unreachable,
    explain,
    reaction,
)
from sparkonce.options import ProducerOptions
from sparkonce.produce.identity import Partition, ProducerIdentity
from sparkonce.produce.lane import Batch, Lane
from sparkonce.wire import Address, Client, Produce

_PRODUCE_IMPLICIT_ADD = 12
_PRODUCE_EXPLICIT_ADD = 11
_NO_OFFSET = -1
_MESSAGE_TOO_LARGE = 10
_OVERDUE_S = 30.0
"""Behind its delivery.timeout.ms, a batch has its outcome; if not by then, it never will."""

Route = tuple[Address, int]
"""A broker, and which of the connections to it."""


class Sender:
    def __init__(self, client: Client, options: ProducerOptions) -> None:
        self._client = client
        self._options = options
        self._changed = threading.Condition()
        self._inbox: list[tuple[ProducerIdentity, Batch]] = []
        self._buffered_bytes = 0
        self._open: set[Batch] = set()
        self._failure: BrokerError | None = None
        self._ended: BrokerError | None = None
        self._lanes: dict[Partition, Lane] = {}
        self._in_flight: dict[Route, int] = defaultdict(int)
        self.on_too_large: Callable[[str], None] = lambda topic: None
        self.on_used_up: Callable[[ProducerIdentity], None] = lambda identity: None
        client.on_turn = self._turn
        client.on_end = self._end_all

    # -- the caller's side --------------------------------------------------------------------

    def enqueue(self, identity: ProducerIdentity, batches: Sequence[Batch]) -> None:
        """Hand over batches, waiting for room in `buffer.memory` for `max.block.ms` at most."""
        size = sum(batch.encoded.size_bytes for batch in batches)
        limit = self._options.buffer_memory

        def room() -> bool:
            return bool(self._failure or self._ended) or (
                self._buffered_bytes + size <= limit or not self._buffered_bytes
            )

        with self._changed:
            if not self._changed.wait_for(room, self._options.max_block_ms / 1000):
                raise Unreachable(
                    f"buffer.memory={limit} stayed full for max.block.ms="
                    f"{self._options.max_block_ms}: the brokers don't take records as fast as they "
                    f"are written, or can't be reached ({self._client.reasons()})"
                )
            self.raise_failure()
            self._buffered_bytes += size
            self._open.update(batches)
            self._inbox += [(identity, batch) for batch in batches]
        self._client.wake()

    def wait_acknowledged(self, timeout_s: float | None = None) -> bool:
        """Until every batch taken so far has its outcome; False when the time is over before.

        Raises the failure that doomed a transaction.
        """
        with self._changed:
            awaited = set(self._open)
            overdue_s = max((batch.deadline_s for batch in awaited), default=0.0) + _OVERDUE_S
            left_s = max(0.0, overdue_s - time.monotonic())
            is_done = self._changed.wait_for(
                lambda: bool(self._failure or self._ended) or awaited.isdisjoint(self._open),
                left_s if timeout_s is None else min(timeout_s, left_s),
            )
            if awaited or self._failure:
                self.raise_failure()
        if not is_done and time.monotonic() >= overdue_s:
            raise FatalError(
                f"{len(awaited & self._open)} batches have no outcome {_OVERDUE_S:g} s behind "
                f"their delivery.timeout.ms={self._options.delivery_timeout_ms}: the client's loop "
                "does not go on. Close this producer, start a new one, and please report it"
            )
        return is_done

    @property
    def is_idle(self) -> bool:
        """Whether every batch has its outcome."""
        with self._changed:
            return not self._open

    def forget(self, why: str) -> None:
        """Give up every batch; answers still to come are of no interest. Waits until it is so."""
        self._client.do(lambda: self._drop_all(AbortableError(why)))
        with self._changed:
            self._failure = None

    def raise_failure(self) -> None:
        """What doomed the transaction, if anything did; or why nothing is sent any more."""
        with self._changed:
            if error := self._failure or self._ended:
                raise error

    # -- on the client's loop -------------------------------------------------------------------

    def _turn(self, now_s: float) -> float | None:
        with self._changed:
            inbox, self._inbox = self._inbox, []
        for identity, batch in inbox:
            lane = self._lane(identity, batch)
            if lane.is_used_up:
                self._end(batch, _used_up(lane), _NO_OFFSET)
            else:
                lane.add(batch)
        self._expire(now_s)
        self._send_ready(now_s)
        wakes = [
            wake
            for lane in self._lanes.values()
            for wake in (lane.deadline_s(), lane.wake_s(now_s))
            if wake is not None and wake > now_s
        ]
        return min(wakes, default=None)

    def _lane(self, identity: ProducerIdentity, batch: Batch) -> Lane:
        key = (batch.encoded.topic, batch.encoded.partition)
        lane = self._lanes.get(key)
        # A lane outlives a transaction only where the identity does; a new one numbers from 0. One
        # without transactions raises the epoch by itself, until a new producer id is needed.
        if (
            lane is None
            or (lane.transactional and lane.identity != identity)
            or (lane.is_used_up and lane.identity.producer_id != identity.producer_id)
        ):
            lane = self._lanes[key] = Lane(identity, self._options.in_flight_max)
        return lane

    def _send_ready(self, now_s: float) -> None:
        by_route: dict[Route, list[Partition]] = {}
        for key, lane in self._lanes.items():
            if lane.empty:
                continue
            leader = self._client.cluster.leader(*key)
            if leader is None:
                self._client.refresh_soon()
                continue
            # A partition keeps to one connection: on two, its batches could overtake each other.
            route = (leader, key[1] % self._options.connections_per_broker)
            if self._in_flight[route] < self._options.in_flight_max:
                by_route.setdefault(route, []).append(key)
        for route, keys in by_route.items():
            if self._client.connection(*route) is None:
                continue
            while self._in_flight[route] < self._options.in_flight_max:
                batches = self._gather(keys, now_s)
                if not batches:
                    break
                self._send(route, batches, now_s)

    def _gather(self, keys: list[Partition], now_s: float) -> list[tuple[Partition, Batch]]:
        """At most one batch a partition, together at most `max.request.size`."""
        gathered: list[tuple[Partition, Batch]] = []
        size = 0
        for key in keys:
            if gathered and size + self._options.batch_size > self._options.max_request_size:
                break
            batch = self._lanes[key].take(now_s)
            if self._lanes[key].is_used_up:
                self._use_up(self._lanes[key])
            elif batch is not None:
                gathered.append((key, batch))
                size += batch.encoded.size_bytes
                # Last in the next round: no partition waits behind the busy ones.
                self._lanes[key] = self._lanes.pop(key)
        if gathered:
            served = {key for key, _ in gathered}
            keys.sort(key=served.__contains__)
        return gathered

    def _send(self, route: Route, batches: list[tuple[Partition, Batch]], now_s: float) -> None:
        implicit = self._client.transaction_version >= 2 or not self._options.transactional_id
        request = Produce(
            [
                (topic, partition, (batch.header, batch.encoded.records), batch.encoded.size_bytes)
                for (topic, partition), batch in batches
            ],
            transactional_id=self._options.transactional_id,
            acks=self._options.acks,
            timeout_ms=self._options.request_timeout_ms,
            high=_PRODUCE_IMPLICIT_ADD if implicit else _PRODUCE_EXPLICIT_ADD,
        )
        lanes = {key: self._lanes[key] for key, _ in batches}
        deadline_s = min(
            now_s + self._options.request_timeout_ms / 1000,
            *(batch.deadline_s for _, batch in batches),
        )
        self._in_flight[route] += 1

        def done(answer: Any) -> None:
            with self._changed:
                self._in_flight[route] -= 1
                self._changed.notify_all()
            read = _reader(answer)
            for key, batch in batches:
                if not batch.ended:
                    self._landed(key, lanes[key], batch, *read(key))

        address, channel = route
        self._client.send(address, request, done, deadline_s, channel)

    def _landed(
        self, key: Partition, lane: Lane, batch: Batch, code: int, offset: int, said: str
    ) -> None:
        react = Reaction.FIND_LEADER if code < 0 else reaction(code)
        if react is Reaction.NONE:
            lane.acknowledged(batch)
            self._end(batch, None, offset)
            return
        if react is Reaction.FIND_LEADER:
            self._client.refresh_soon()
        now_s = time.monotonic()
        again = react in (Reaction.RESEND, Reaction.FIND_LEADER, Reaction.FIND_COORDINATOR)
        if react is Reaction.OUT_OF_ORDER and lane.idempotent:
            again = not lane.is_next_in_line(batch)
        batch.attempts += 1
        in_time = now_s < batch.deadline_s and batch.attempts <= self._options.retries
        if again and in_time:
            lane.returned(batch, now_s + self._pause_s(batch), code)
            return
        topic, partition = key
        why = said or explain(code)
        if again:
            why = f"not acknowledged after {batch.attempts} attempts within delivery.timeout.ms="
            why += f"{self._options.delivery_timeout_ms}; last: {said or explain(code)}"
        what = f"{batch.encoded.count} records to {topic}-{partition}"
        self._give_up(lane, batch, f"{what}: {why}", code)

    def _pause_s(self, batch: Batch) -> float:
        growing_ms = self._options.retry_backoff_ms << min(batch.attempts - 1, 16)
        return min(growing_ms, self._options.retry_backoff_max_ms) / 1000

    def _give_up(self, lane: Lane, batch: Batch, why: str, code: int) -> None:
        lane.given_up(batch)
        if code == _MESSAGE_TOO_LARGE:
            self.on_too_large(batch.encoded.topic)
        if not lane.transactional:
            return self._end(batch, DeliveryFailed(why, code), _NO_OFFSET)
        failure = AbortableError(f"{why}. Abort the transaction; nothing of it is visible", code)
        # Before the outcome: whoever waits for that must not take the transaction for whole.
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()
        self._end(batch, failure, _NO_OFFSET)
        self._drop_all(failure)

    def _use_up(self, lane: Lane) -> None:
        """So many batches of this partition have failed that no epoch is left to go on under."""
        for batch in list(lane):
            lane.given_up(batch)
            self._end(batch, _used_up(lane), _NO_OFFSET)
        self.on_used_up(lane.identity)

    def _expire(self, now_s: float) -> None:
        for (topic, partition), lane in list(self._lanes.items()):
            for batch in lane.late(now_s):
                if not batch.ended:
                    why = self._client.reasons()
                    self._give_up(
                        lane,
                        batch,
                        f"{batch.encoded.count} records to {topic}-{partition} were not sent within"
                        f" delivery.timeout.ms={self._options.delivery_timeout_ms} ({why})",
                        -1,
                    )

    def _drop_all(self, error: BrokerError) -> None:
        with self._changed:
            dropped = [batch for _, batch in self._inbox]
            self._inbox = []
        for lane in self._lanes.values():
            dropped += lane
        self._lanes.clear()
        for batch in dropped:
            if not batch.ended:
                self._end(batch, error, _NO_OFFSET)

    def _end(self, batch: Batch, error: BrokerError | None, offset: int) -> None:
        batch.ended = True
        try:
            batch.outcome(batch, error, offset)
        finally:
            with self._changed:
                self._buffered_bytes -= batch.encoded.size_bytes
                self._open.discard(batch)
                self._changed.notify_all()

    def _end_all(self, why: BrokerError) -> None:
        """The client's loop has come to its end, and with it all that was under way."""
        with self._changed:
            self._ended = why
            self._changed.notify_all()
        self._drop_all(why)


def _used_up(lane: Lane) -> DeliveryFailed:
    return DeliveryFailed(
        f"the epochs of {lane.identity} are used up, one for each batch that failed for good: "
        "these records were not written. Write them again, they go under a new producer id; and "
        "look at why so many batches fail"
    )


def _reader(answer: Any) -> Callable[[Partition], tuple[int, int, str]]:
    """Of a partition in the answer: error code, first offset, the broker's own words."""
    if answer is None:  # acks=0: sent is all there is to know
        return lambda key: (0, _NO_OFFSET, "")
    if isinstance(answer, BrokerError):
        return lambda key: (answer.code, _NO_OFFSET, str(answer))
    parts = {
        (topic.name, part.index): part
        for topic in answer.responses
        for part in topic.partition_responses
    }

    def read(key: Partition) -> tuple[int, int, str]:
        part = parts.get(key)
        if part is None:
            return -1, _NO_OFFSET, "the broker's answer left this partition out"
        words = f"{explain(part.error_code)}: {part.error_message}" if part.error_message else ""
        return part.error_code, part.base_offset, words

    return read
