"""A lane against the rules that brokers keep, under every order of errors Hypothesis finds.

The log below is those rules written down (`ProducerStateManager`, `ProducerAppendInfo`): epochs,
sequences per record, the last five batches remembered. Real brokers are met in test_faults.
"""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkonce.encode import Codec, EncodedBatch
from sparkonce.produce.identity import EPOCH_MAX, NO_IDENTITY, ProducerIdentity
from sparkonce.produce.lane import Batch, Lane

OUT_OF_ORDER, FENCED = 45, 47


class Log:
    def __init__(self) -> None:
        self.written: list[int] = []
        self._epoch = -1
        self._next = 0
        self._last: deque[tuple[int, int]] = deque(maxlen=5)

    def append(self, epoch: int, sequence: int, batch: Batch) -> int:
        count = batch.encoded.count
        if epoch < self._epoch:
            return FENCED
        if epoch > self._epoch:
            # Of a producer it has never seen it takes any sequence for the first.
            if sequence != 0 and self._epoch >= 0:
                return OUT_OF_ORDER
            self._epoch, self._next = epoch, sequence
            self._last.clear()
        if (sequence, count) in self._last:
            return 0
        if sequence != self._next:
            return OUT_OF_ORDER
        self._next = (sequence + count) % 2**31
        self._last.append((sequence, count))
        self.written.append(batch.order)
        return 0


def a_batch(count: int) -> Batch:
    encoded = EncodedBatch("t", 0, count, Codec.NONE, 0, 0, memoryview(b"x"), np.arange(count))
    return Batch(encoded, 0.0, lambda batch, error, offset: None)


# What befalls the requests under way: how many the broker acts upon before the connection is cut;
# or that all are answered, with the first one refused (0: none is).
_CUT = st.tuples(st.just("cut"), st.integers(0, 5))
_ANSWER = st.tuples(st.just("answer"), st.sampled_from([0, 6, 19]))
_REJECT = st.tuples(st.just("reject"), st.just(10))


@settings(max_examples=1000, deadline=None)
@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=15),
    events=st.lists(st.one_of(_CUT, _ANSWER, _REJECT), max_size=25),
    pauses=st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=1, max_size=7),
    warm=st.booleans(),
)
@example(  # a repeat that new batches overtook until the broker had forgotten it
    counts=[1] * 11,
    events=[*[("answer", 0)] * 1, ("cut", 5), *[("answer", 0)] * 4, ("answer", 6), ("cut", 2)],
    pauses=[0.0],
    warm=False,
)
def test_whatever_happens_nothing_is_lost_repeated_or_reordered(
    counts: list[int], events: list[tuple[str, int]], pauses: list[float], warm: bool
) -> None:
    lane = Lane(ProducerIdentity(None if warm else "id", 7, 0), in_flight_max=5)
    log = Log()
    rejected: set[int] = set()
    for count in counts:
        lane.add(a_batch(count))
    script = iter(events)
    pause = itertools.cycle(pauses)
    now_s = 0.0
    for _ in range(500):
        if lane.empty:
            break
        flying: list[tuple[int, int, Batch]] = []
        while (batch := lane.take(now_s)) is not None:
            flying.append((lane.identity.epoch, batch.sequence, batch))
        if not flying:
            wake_s = lane.wake_s(now_s)
            assert wake_s is not None, "it waits, and nothing will wake it"
            now_s = wake_s
            continue
        assert 0 < len(flying) <= 5
        kind, number = next(script, ("answer", 0))
        refusal = number if kind == "answer" else 0
        for place, (epoch, sequence, batch) in enumerate(flying):
            if kind == "cut":
                if place < number:
                    log.append(epoch, sequence, batch)
                lane.returned(batch, now_s + next(pause), code=-1)
            elif kind == "reject" and place == 0 and lane.idempotent and not lane.transactional:
                rejected.add(batch.order)
                lane.given_up(batch)
            elif refusal and place == 0:
                lane.returned(batch, now_s + next(pause), refusal)
            elif (code := log.append(epoch, sequence, batch)) == 0:
                lane.acknowledged(batch)
            else:
                assert code == OUT_OF_ORDER
                assert not lane.is_next_in_line(batch), "nothing before it is open: data is lost"
                lane.returned(batch, now_s + next(pause), code)
    assert lane.empty, "the lane came to a standstill"
    # A batch given up after its answer was lost may have been written; never twice, in order.
    certain = [order for order in log.written if order not in rejected]
    assert certain == [order for order in range(len(counts)) if order not in rejected]
    assert len(set(log.written)) == len(log.written)


@pytest.mark.parametrize("transactional_id", ["id", None])
def test_a_lane_starts_with_one_batch_in_flight(transactional_id: str | None) -> None:
    lane = Lane(ProducerIdentity(transactional_id, 7, 0), in_flight_max=5)
    for _ in range(8):
        lane.add(a_batch(1))
    first = lane.take(0.0)
    assert first is not None
    assert lane.take(0.0) is None
    lane.acknowledged(first)
    taken = [lane.take(0.0) for _ in range(6)]
    assert taken[4] is not None
    assert taken[5] is None


def test_sequences_wrap_after_the_largest_number() -> None:
    lane = Lane(ProducerIdentity(None, 7, 0), in_flight_max=5)
    lane._next_sequence = 2**31 - 2
    for _ in range(2):
        lane.add(a_batch(3))
    first = lane.take(0.0)
    assert first is not None
    lane.acknowledged(first)
    second = lane.take(0.0)
    assert second is not None
    assert (first.sequence, second.sequence) == (2**31 - 2, 1)


def test_without_idempotence_a_batch_is_sent_again_beside_those_under_way() -> None:
    lane = Lane(NO_IDENTITY, in_flight_max=5)
    for _ in range(3):
        lane.add(a_batch(1))
    first, second, third = (lane.take(0.0) for _ in range(3))
    assert first and second and third
    assert first.sequence == -1
    lane.returned(first, 0.0, code=-1)
    assert lane.take(0.0) is first


def test_used_up_epochs_are_noticed_and_do_not_wrap() -> None:
    lane = Lane(ProducerIdentity(None, 7, EPOCH_MAX), in_flight_max=5)
    lane.add(a_batch(1))
    lane.add(a_batch(1))
    first = lane.take(0.0)
    assert first is not None and not lane.is_used_up
    lane.given_up(first)
    assert lane.take(0.0) is None
    assert lane.is_used_up


def test_the_last_epoch_is_left_when_what_may_be_written_is_settled() -> None:
    """Under its old number, as ever: only what is known to be unwritten may go elsewhere."""
    lane = Lane(ProducerIdentity(None, 7, EPOCH_MAX), in_flight_max=5)
    for _ in range(3):
        lane.add(a_batch(1))
    warm = lane.take(0.0)
    assert warm is not None
    lane.acknowledged(warm)
    bad, unanswered = lane.take(0.0), lane.take(0.0)
    assert bad is not None and unanswered is not None
    lane.returned(unanswered, 0.0, -1)
    lane.given_up(bad)
    assert lane.take(0.0) is unanswered and not lane.is_used_up
    lane.acknowledged(unanswered)
    lane.add(a_batch(1))
    assert lane.take(0.0) is None and lane.is_used_up
