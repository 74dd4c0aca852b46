"""What is drawn together can happen together: nothing waits behind the end of its life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from sparkonce.guarantees import Guarantee
from sparkonce.verify.contract import POINTS, Pipeline
from sparkonce.verify.drawing import draw
from sparkonce.verify.families import MIXED
from sparkonce.verify.network import LoseResponse
from sparkonce.verify.pipelines import built_in, ends_built_in
from sparkonce.verify.reach import within_lives
from sparkonce.verify.schedule import (
    Arm,
    At,
    Broker,
    Element,
    Kill,
    KillSent,
    KillWorker,
    MoreInput,
    Outlast,
    Pause,
    Schedule,
    lives,
)
from sparkonce.verify.traffic import transactions
from sparkonce.verify.workload import Workload

PIPELINES = {each.name: each for each in [*built_in(), *ends_built_in()] if each.families is None}
STATELESS, PRODUCER = PIPELINES["stateless"], PIPELINES["producer"]
EXACTLY = Guarantee.EXACTLY_ONCE


class Walk:
    """A run in which nothing but the schedule goes wrong, and one task tells of each point."""

    def __init__(self, schedule: Schedule, pipeline: Pipeline, batches: int) -> None:
        self.fired: set[Element] = set()
        self._schedule = schedule
        self._pipeline = pipeline
        self._left = batches
        for life in range(lives(schedule)):
            self._live(life)

    def _live(self, life: int) -> None:
        times = Counter[str]()
        ends = 1 if self._pipeline.spark else 0  # its ledger is signed in a transaction
        if not self._tells("fence", times, life) or self._is_sent(ends, life):
            return
        while self._left:
            is_begun_again = False
            for point in self._points():
                if point == "end:answered":
                    self._left, ends = self._left - 1, ends + 1
                    if self._is_sent(ends, life):
                        return
                outlasted = len(self._of(Outlast))
                if not self._tells(point, times, life):
                    return
                is_begun_again = len(self._of(Outlast)) > outlasted
                if is_begun_again:
                    break

    def _points(self) -> Iterator[str]:
        for point in POINTS[1:]:
            if point == "end:answered" or point in self._pipeline.points:
                yield point

    def _of(self, kind: type[Element]) -> list[Element]:
        return [each for each in self.fired if isinstance(each, kind)]

    def _is_sent(self, ends: int, life: int) -> bool:
        due = [
            e for e in self._schedule if isinstance(e, KillSent) and (e.nth, e.life) == (ends, life)
        ]
        self.fired |= set(due)
        return bool(due)

    def _tells(self, point: str, times: Counter[str], life: int) -> bool:
        """Whether it goes on from there."""
        times[point] += 1
        for each in self._schedule:
            if not isinstance(each, At) or (each.point, each.nth) != (point, times[point]):
                continue
            is_taken_over = isinstance(each, Arm) and each.life < life and each not in self.fired
            if each.life == life or is_taken_over:
                self.fired.add(each)
                if isinstance(each, Kill | Pause):
                    return False
        return True


def missed(schedule: Schedule, pipeline: Pipeline, workload: Workload) -> list[Element]:
    fired = Walk(schedule, pipeline, transactions(pipeline, workload)).fired
    bound = [each for each in schedule if isinstance(each, At | KillSent)]
    return [each for each in bound if each not in fired]


@pytest.mark.parametrize("name", PIPELINES)
def test_all_of_a_mixed_schedule_can_happen(seed: int, name: str) -> None:
    pipeline = PIPELINES[name]
    kinds = Counter[str]()
    for number in range(seed, seed + 300):
        plan = draw(number, pipeline, EXACTLY, MIXED)
        late = missed(plan.schedule, pipeline, plan.workload)
        assert not late, (plan, late)
        kinds.update({type(each).__name__ for each in plan.schedule if getattr(each, "life", 0)})
    if pipeline.writes_kafka and pipeline.batched and pipeline.points:
        assert kinds["Outlast"], "it goes where a later life comes by"


def test_an_element_behind_the_end_of_its_life_is_in_the_next_one() -> None:
    killed, held = Kill(point="open"), Outlast(point="offsets")
    moved = (killed, Outlast(point="offsets", life=1))
    assert within_lives((killed, held), STATELESS, Workload()) == moved
    before = (Outlast(point="open"), Kill(point="end"), KillWorker(point="produce:last"))
    assert within_lives(before, STATELESS, Workload()) == before
    zombie = (Pause(point="offsets"), Broker(point="end"), MoreInput())
    kept = within_lives(zombie, STATELESS, Workload())
    assert kept == (zombie[0], Broker(point="end", life=1), zombie[2])


def test_where_nothing_is_left_to_do_it_comes_sooner_or_not_at_all() -> None:
    last = Kill(point="spark-commit", nth=2)
    assert within_lives((last, Outlast(point="end", nth=3)), STATELESS, Workload()) == (
        last,
        Outlast(point="end"),
    )
    only = Workload(records=20)
    first = Kill(point="end:answered")
    late = Broker(point="spark-commit")
    assert within_lives((first, late), STATELESS, only) == (first,)


def test_a_transaction_that_is_outlasted_comes_twice() -> None:
    twice = (Outlast(point="end"), Outlast(point="end", nth=3))
    assert within_lives(twice, STATELESS, Workload()) == twice
    again = (Broker(point="end:answered"), Kill(point="open", nth=2), Outlast(point="end"))
    moved = (Broker(point="end:answered", life=1), *again[1:])
    assert within_lives(again, STATELESS, Workload()) == moved, "it is begun again, not done"
    assert within_lives((twice[1],), STATELESS, Workload()) == (Outlast(point="end"),)


def test_spark_has_a_transaction_before_its_first_batch() -> None:
    sent, held = KillSent(nth=1), Outlast(point="end")
    assert within_lives((sent, held), PRODUCER, Workload()) == (sent, held)
    moved = (sent, Outlast(point="end", life=1))
    assert within_lives((sent, held), STATELESS, Workload()) == moved


def test_a_fault_that_a_later_life_takes_over_stays_where_it_is() -> None:
    lost = LoseResponse("EndTxn")
    killed, armed = Kill(point="open", nth=2), Arm(point="open", nth=1, fault=lost)
    both = (Kill(point="fence"), armed)
    assert within_lives(both, STATELESS, Workload()) == both
    # One transaction is left then, so its second is never opened.
    behind = Kill(point="end:answered")
    late = Arm(point="open", nth=2, fault=lost)
    assert within_lives((behind, late), STATELESS, Workload()) == (
        behind,
        Arm(point="open", life=1, fault=lost),
    )
    assert within_lives((killed, armed), STATELESS, Workload()) == (killed, armed)
