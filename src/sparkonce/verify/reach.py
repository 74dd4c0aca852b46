"""Which elements of a schedule can still happen, where lives are ended on purpose; moves the rest.

An element is bound to a life. Behind the end of that life it would wait for nothing: it is moved to
a later life, or to the first transaction of its own, and left out where neither has a place for it.
What is counted is what surely happens: one task in each transaction, no attempt that fails by
chance. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from sparkonce.verify.contract import POINTS, Pipeline
from sparkonce.verify.schedule import (
    ENDS,
    Arm,
    At,
    Element,
    KillAfter,
    KillSent,
    Outlast,
    Schedule,
    lives,
)
from sparkonce.verify.traffic import needs_another, transactions
from sparkonce.verify.workload import Workload

_TASK_POINTS: Final = ("produce:first", "produce:last")
"""Told by each task: which of its arrivals belongs to which transaction is not known."""
_BEHIND_END: Final = POINTS.index("end") + 0.5


@dataclass(frozen=True, slots=True)
class _End:
    """How a life ends: in which of its transactions, counted from 1, and where in it."""

    nth: int
    order: float

    @property
    def decided(self) -> int:
        return self.nth if self.order > POINTS.index("end") else self.nth - 1


@dataclass(slots=True)
class _Life:
    transactions: int
    """That are still to be done when it begins."""
    end: _End | None
    timed_out: list[float] = field(default_factory=list)
    """Where a transaction is outlasted; it is begun again."""

    def reaches(self, point: str, nth: int) -> bool:
        """Whether the point is surely reached so often before the end."""
        order = POINTS.index(point)
        if point == "fence":
            return nth == 1 and (self.end is None or self.end.order > order)
        if self.end is None:
            again = sum(each >= order for each in self.timed_out)
            return nth <= self.transactions + again
        if order >= self.end.order:
            cut_short = sum(self.end.order <= each < order for each in self.timed_out)
            return nth <= self.end.nth - 1 - cut_short
        again = sum(order <= each < self.end.order for each in self.timed_out)
        return nth <= self.end.nth + again


def within_lives(schedule: Schedule, pipeline: Pipeline, workload: Workload) -> Schedule:
    """The same elements, each where it can come to pass."""
    walked = _lives(schedule, pipeline, workload)
    if any(isinstance(each, KillAfter) for each in schedule):
        return schedule  # it tells no points
    placed: dict[int, Element] = {}
    # Transactions that are outlasted first: what else is reached depends on them.
    for index, each in sorted(
        enumerate(schedule), key=lambda numbered: not isinstance(numbered[1], Outlast)
    ):
        if not isinstance(each, At) or isinstance(each, ENDS):
            placed[index] = each
            continue
        for place in _places(each, walked):
            if place not in placed.values() and not _collides(place, placed.values()):
                placed[index] = place
                if isinstance(place, Outlast):
                    walked[place.life].timed_out.append(POINTS.index(place.point))
                break
    return tuple(placed[index] for index in sorted(placed))


def _lives(schedule: Schedule, pipeline: Pipeline, workload: Workload) -> list[_Life]:
    left = transactions(pipeline, workload)
    walked = []
    for life in range(lives(schedule)):
        end = next((_end(e, pipeline) for e in schedule if _ends(e, life)), None)
        walked.append(_Life(left, end))
        if end is not None:
            left -= end.decided
    return walked


def _ends(element: Element, life: int) -> bool:
    return isinstance(element, ENDS) and element.life == life


def _end(element: Element, pipeline: Pipeline) -> _End:
    if isinstance(element, KillSent):
        # A pipeline of Spark's signs its ledger in a transaction before the first batch.
        return _End(element.nth - (1 if pipeline.spark else 0), _BEHIND_END)
    assert isinstance(element, At)
    if element.point in _TASK_POINTS:
        return _End(1, POINTS.index(element.point))
    return _End(element.nth, POINTS.index(element.point))


def _places(element: At, walked: list[_Life]) -> Iterator[At]:
    """Where it can happen: as it was drawn, in a later life, or earlier in its own."""
    if _happens(element, walked):
        yield element
    for life in range(element.life + 1, len(walked)):
        moved = replace(element, life=life, nth=1)
        if _happens(moved, walked):
            yield moved
    sooner = replace(element, nth=1)
    if _happens(sooner, walked):
        yield sooner


def _happens(element: At, walked: list[_Life]) -> bool:
    if not isinstance(element, Arm):
        return walked[element.life].reaches(element.point, element.nth)
    # A later life takes it over; a fault that is in force stays so until it has hit.
    last = element.nth + (1 if needs_another(element.fault) else 0)
    return any(life.reaches(element.point, last) for life in walked[element.life :])


def _collides(element: At, placed: Iterable[Element]) -> bool:
    """Whether another fault waits for the same request: only one of them could have it."""
    if not isinstance(element, Arm):
        return False
    own = (element.nth, element.life, element.fault.api, element.fault.nth)
    return any(
        own == (each.nth, each.life, each.fault.api, each.fault.nth)
        for each in placed
        if isinstance(each, Arm)
    )
