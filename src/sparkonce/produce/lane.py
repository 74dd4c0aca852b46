"""One partition's batches on their way: numbering, order, and what happens after an error.

Pure, and owned by the sender. What brokers ask of an idempotent producer (KAFKA-5494, KIP-360):
sequences grow by one per record, at most five batches are under way, and after an error those
under way come back before anything is sent again, in order, one at a time. A batch that fails for
good leaves a gap; behind it, batches known to be unwritten are numbered anew under the next epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from sparkonce.encode import EncodedBatch, seal
from sparkonce.errors import BrokerError
from sparkonce.produce.identity import EPOCH_MAX, ProducerIdentity

SEQUENCES = 2**31
# No answer at all; timed out while replicating; written by the leader alone.
_LEAVES_IT_OPEN = frozenset({-1, 7, 20})
# Brokers look for a repeat before they look at the order: out of order means not written.
_SAYS_NO = frozenset({45})

Outcome = Callable[["Batch", BrokerError | None, int], None]
"""Called once per batch: the batch, an error or None, the offset of its first record."""


class Batch:
    """A record batch between `enqueue` and its outcome."""

    __slots__ = (
        "attempts",
        "deadline_s",
        "encoded",
        "ended",
        "header",
        "maybe_written",
        "not_before_s",
        "order",
        "outcome",
        "sequence",
        "starts_at",
    )

    def __init__(self, encoded: EncodedBatch, deadline_s: float, outcome: Outcome) -> None:
        self.encoded = encoded
        self.deadline_s = deadline_s
        self.outcome = outcome
        self.order = -1
        self.sequence = -1
        self.header = b""
        self.attempts = 0
        self.not_before_s = 0.0
        self.maybe_written = False
        """An attempt had no answer, or one that leaves it open."""
        self.ended = False
        self.starts_at: int | None = None
        """The sequence to go on from, where others wrote to the partition meanwhile."""


class Lane:
    def __init__(self, identity: ProducerIdentity, in_flight_max: int) -> None:
        self.identity = identity
        self.idempotent = identity.producer_id >= 0
        self.transactional = identity.transactional_id is not None
        self._in_flight_max = in_flight_max
        # One at a time until the first acknowledgement. A broker that knows nothing of this
        # producer takes any sequence for the first: the second batch, should the first one have
        # come too early for a new leader. And in a transaction, the leader asks the coordinator
        # about the first batch, and refuses what comes before the answer.
        self._warm = not self.idempotent
        self._gap = False
        self.is_used_up = False
        """No epoch is left behind a gap: nothing more is sent under this producer id."""
        # Until what came back is acknowledged, nothing new goes out behind it: five new batches,
        # and the broker would no longer know the old one for a repeat.
        self._recovering = False
        self._next_order = 0
        self._next_sequence = 0
        self._waiting: deque[Batch] = deque()
        self._flying: list[Batch] = []
        self._again: list[Batch] = []

    @property
    def empty(self) -> bool:
        return not (self._waiting or self._flying or self._again)

    def __iter__(self) -> Iterator[Batch]:
        yield from [*self._flying, *self._again, *self._waiting]

    def add(self, batch: Batch) -> None:
        if batch.starts_at is not None:
            assert self.empty, "a turn begins when the last one has ended"
            self._next_sequence = batch.starts_at
        batch.order = self._next_order
        self._next_order += 1
        self._waiting.append(batch)

    def take(self, now_s: float) -> Batch | None:
        """The batch that may be sent now, numbered; it counts as under way from here on."""
        if self._gap and not self._flying and self.identity.epoch >= EPOCH_MAX:
            self.is_used_up = not any(batch.maybe_written for batch in self._again)
            if self.is_used_up:
                return None
        batch = self._take_again(now_s)
        if batch is None and not (self._again and self.idempotent):
            batch = self._take_waiting()
        if batch is not None:
            self._flying.append(batch)
        return batch

    def wake_s(self, now_s: float) -> float | None:
        """When the next pause after an error is over."""
        later = [batch.not_before_s for batch in self._again if batch.not_before_s > now_s]
        return min(later, default=None)

    def acknowledged(self, batch: Batch) -> None:
        self._flying.remove(batch)
        self._warm = True

    def returned(self, batch: Batch, not_before_s: float, code: int) -> None:
        """An error after which the same is sent again."""
        self._flying.remove(batch)
        self._recovering = True
        if code in _LEAVES_IT_OPEN:
            batch.maybe_written = True
        elif code in _SAYS_NO:
            batch.maybe_written = False
        self._again.append(batch)
        self._again.sort(key=lambda other: other.order)
        batch.not_before_s = not_before_s

    def given_up(self, batch: Batch) -> None:
        """A batch that ends here unwritten, or with its fate unknown."""
        for group in (self._flying, self._again, self._waiting):
            if batch in group:
                group.remove(batch)
        # One that was never numbered leaves no gap in the sequence.
        self._gap = self._gap or batch.sequence >= 0

    def is_next_in_line(self, batch: Batch) -> bool:
        """Nothing before it is still open, and nothing before it was given up."""
        before = [*self._flying, *self._again]
        return not self._gap and all(batch.order <= other.order for other in before)

    def late(self, now_s: float) -> list[Batch]:
        """Batches past their time that aren't under way (those return first)."""
        return [b for b in [*self._again, *self._waiting] if b.deadline_s <= now_s]

    def deadline_s(self) -> float | None:
        if self._again:
            return self._again[0].deadline_s
        return self._waiting[0].deadline_s if self._waiting else None

    def _take_again(self, now_s: float) -> Batch | None:
        if not self._again or not self._room():
            return None
        if not self.idempotent:
            # Nothing to keep order by: a batch waits by itself, and others overtake it.
            due = (batch for batch in self._again if batch.not_before_s <= now_s)
            return self._pop_again(next(due, None))
        if self._flying or self._again[0].not_before_s > now_s:
            return None
        if self._gap:
            # First settle the fate of those that may have been written, under their old numbers.
            for batch in self._again:
                if batch.maybe_written:
                    return self._pop_again(batch)
            self._number_anew()
        return self._pop_again(self._again[0])

    def _pop_again(self, batch: Batch | None) -> Batch | None:
        if batch is not None:
            self._again.remove(batch)
        return batch

    def _take_waiting(self) -> Batch | None:
        if not self._waiting or not self._room():
            return None
        if self._recovering and self.idempotent:
            if self._flying:
                return None
            self._recovering = False
        if self._gap:
            if self._flying:
                return None
            self._number_anew()
        batch = self._waiting.popleft()
        self._number(batch)
        return batch

    def _room(self) -> bool:
        return len(self._flying) < (self._in_flight_max if self._warm else 1)

    def _number_anew(self) -> None:
        who = self.identity
        assert who.epoch < EPOCH_MAX, "it is used up"
        self.identity = ProducerIdentity(who.transactional_id, who.producer_id, who.epoch + 1)
        self._gap = self._warm = False
        self._next_sequence = 0
        for batch in self._again:
            self._number(batch)

    def _number(self, batch: Batch) -> None:
        if self.idempotent:
            batch.sequence = self._next_sequence
            self._next_sequence = (self._next_sequence + batch.encoded.count) % SEQUENCES
        batch.header = seal(
            batch.encoded,
            producer_id=self.identity.producer_id,
            epoch=self.identity.epoch,
            sequence=batch.sequence,
            transactional=self.transactional,
        )
