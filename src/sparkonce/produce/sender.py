"""The sender: batches from the caller's thread to the leaders of their partitions.

Its turn is a step of the client's loop, so lanes need no locks. The caller's side (`enqueue`,
`wait_idle`) shares an inbox, a byte count and the first failure with it, under one condition.
Memory is bounded here: a batch counts from `enqueue` to its outcome.
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

Route = tuple[Address, int]
"""A broker, and which of the connections to it."""


class Sender:
    def __init__(self, client: Client, options: ProducerOptions) -> None:
        self._client = client
        self._options = options
        self._changed = threading.Condition()
        self._inbox: list[tuple[ProducerIdentity, Batch]] = []
        self._buffered_bytes = 0
        self._open_batches = 0
        self._failure: BrokerError | None = None
        self._lanes: dict[Partition, Lane] = {}
        self._in_flight: dict[Route, int] = defaultdict(int)
        self.on_too_large: Callable[[str], None] = lambda topic: None
        client.on_turn = self._turn

    # -- the caller's side --------------------------------------------------------------------

    @property
    def failure(self) -> BrokerError | None:
        """The first batch that failed in this transaction; nothing more of it is sent."""
        return self._failure

    def enqueue(self, identity: ProducerIdentity, batches: Sequence[Batch]) -> None:
        """Hand over batches, waiting for room in `buffer.memory` for `max.block.ms` at most."""
        size = sum(batch.encoded.size_bytes for batch in batches)
        limit = self._options.buffer_memory

        def room() -> bool:
            return bool(self._failure or self._client.broken) or (
                self._buffered_bytes + size <= limit or not self._buffered_bytes
            )

        with self._changed:
            if not self._changed.wait_for(room, self._options.max_block_ms / 1000):
                raise Unreachable(
                    f"buffer.memory={limit} stayed full for max.block.ms="
                    f"{self._options.max_block_ms}: the brokers don't take records as fast as they "
                    f"are written, or can't be reached ({self._client.reasons()})"
                )
            self._raise_failure()
            self._buffered_bytes += size
            self._open_batches += len(batches)
            self._inbox += [(identity, batch) for batch in batches]
        self._client.wake()

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Until every batch has its outcome; raises the failure that doomed a transaction."""
        with self._changed:
            idle = self._changed.wait_for(
                lambda: not self._open_batches or bool(self._failure or self._client.broken),
                timeout_s,
            )
            self._raise_failure()
        return idle

    def forget(self, why: str) -> None:
        """Give up every batch; answers still to come are of no interest. Waits until it is so."""
        self._client.do(lambda: self._drop_all(AbortableError(why)))
        self._failure = None

    def _raise_failure(self) -> None:
        if self._client.broken:
            raise self._client.broken
        if self._failure:
            raise self._failure

    # -- on the client's loop -------------------------------------------------------------------

    def _turn(self, now_s: float) -> float | None:
        with self._changed:
            inbox, self._inbox = self._inbox, []
        for identity, batch in inbox:
            self._lane(identity, batch).add(batch)
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
        # A lane outlives a transaction only where the identity does; a new one numbers from 0.
        if lane is None or (lane.transactional and lane.identity != identity):
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
            if batch is not None:
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
        self._end(batch, failure, _NO_OFFSET)
        if self._failure is None:
            self._failure = failure
        self._drop_all(failure)

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
        batch.outcome(batch, error, offset)
        with self._changed:
            self._buffered_bytes -= batch.encoded.size_bytes
            self._open_batches -= 1
            self._changed.notify_all()


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
