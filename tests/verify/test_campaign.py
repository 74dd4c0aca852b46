"""Which trials are run: each cell once, numbers that go on, rounds of what may share a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkonce.errors import ConfigError
from sparkonce.guarantees import Guarantee
from sparkonce.verify.campaign import Campaign, Wish, in_rounds
from sparkonce.verify.controls import controls
from sparkonce.verify.outcome import Defect, Finding, Outcome, Verdict
from sparkonce.verify.pipelines import built_in
from sparkonce.verify.report.book import Book
from sparkonce.verify.schedule import FAMILIES, Kill, Pause, families
from sparkonce.verify.trial import Trial

RELAY, STATELESS, *_ = built_in()
BOOK = Book(seed=5, started="2026-01-01T00:00:00+00:00", versions={})


def trial(number: int, **fields: object) -> Trial:
    plain = Trial(
        number=number,
        seed=number,
        pipeline=RELAY,
        guarantee=Guarantee.EXACTLY_ONCE,
        family="crash",
        schedule=(Kill(point="open"),),
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def outcome(number: int, pipeline: str = "producer") -> Outcome:
    return Outcome(
        number=number,
        seed=99,
        pipeline=pipeline,
        guarantee="exactly_once",
        family="crash",
        schedule=("Kill(point='end', nth=2)",),
        verdict=Verdict.KEPT,
        findings=(),
        records=80,
        duration_s=1.0,
    )


def planned(wish: Wish, book: Book = BOOK) -> list[Trial]:
    return [each for _, rounds in Campaign(wish, book)._plan() for part in rounds for each in part]


def test_the_quick_preset_has_each_cell_once_and_the_controls() -> None:
    drawn = planned(Wish(pipelines=tuple(built_in()), seed=5))
    cells = [(each.name, each.guarantee, each.family) for each in drawn if each.family in FAMILIES]
    assert len(set(cells)) == len(cells)
    assert set(cells) == {
        (pipeline.name, guarantee, family)
        for pipeline in built_in()
        for guarantee in pipeline.guarantees
        for family in families(pipeline, guarantee)
    }
    rest = {each.name for each in drawn if each.family not in FAMILIES}
    assert rest == {each.name for each in controls(3)}
    assert sorted(each.number for each in drawn) == list(range(1, len(drawn) + 1))


def test_a_later_run_goes_on_with_other_seeds() -> None:
    wish = Wish(pipelines=(RELAY,), seed=5, minutes=1, runs=30)
    first = planned(wish)
    book = replace(BOOK, outcomes=tuple(outcome(each.number) for each in first))
    second = planned(wish, book)
    assert {each.number for each in first}.isdisjoint(each.number for each in second)
    assert {each.seed for each in first}.isdisjoint(each.seed for each in second)
    assert planned(wish) == first, "the same numbers, the same trials"


def test_only_what_was_asked_for() -> None:
    wish = Wish(pipelines=tuple(built_in()), seed=5, only=("stateless", "exactly", "zombie"))
    assert [(each.name, each.family) for each in planned(wish)] == [("stateless", "zombie")]
    assert len(planned(replace(wish, only=(), runs=3))) == 3


def test_weaker_guarantees_that_have_shown_nothing_get_more_chances() -> None:
    silent = replace(outcome(1), guarantee="none")
    book = replace(BOOK, outcomes=(silent,))
    wish = Wish(pipelines=tuple(built_in()), seed=5, only=("producer", "none"), controls=False)
    cells = [(each.name, each.guarantee, each.family) for each in planned(wish, book)]
    once = [("producer", Guarantee.NONE, family) for family in ("network", "crash")]
    assert cells == once * 3
    seeds = [each.seed for each in planned(wish, book)]
    assert len(set(seeds)) == len(seeds)

    lost, repeated = (Finding(each, 1, (), "after") for each in (Defect.LOST, Defect.REPEATED))
    loud = replace(silent, number=2, findings=(lost, repeated))
    shown = replace(BOOK, outcomes=(silent, loud))
    assert len(planned(wish, shown)) == len(once)
    assert len(planned(replace(wish, runs=1), book)) == 1, "no more than was asked for"


def test_a_trial_of_the_book_again() -> None:
    book = replace(BOOK, outcomes=(outcome(17),))
    (again,) = planned(Wish(pipelines=tuple(built_in()), seed=5, replay=17), book)
    assert (again.number, again.seed, again.name) == (18, 99, "producer")
    assert again.schedule == (Kill(point="end", nth=2),)
    with pytest.raises(ConfigError, match="no trial 3"):
        planned(Wish(pipelines=(RELAY,), seed=5, replay=3), book)
    elsewhere = replace(BOOK, outcomes=(outcome(17, "my_job"),))
    with pytest.raises(ConfigError, match="'my_job', which is not among those given"):
        planned(Wish(pipelines=(RELAY,), seed=5, replay=17), elsewhere)


def test_rounds_are_of_one_kind() -> None:
    mine = replace(RELAY, shares=False)
    trials = [
        trial(1),
        trial(2, pipeline=STATELESS),
        trial(3, schedule=(Pause(point="open"),)),
        trial(4),
        trial(5, pipeline=mine),
        trial(6, shares=False),
    ]
    rounds = [[each.number for each in part] for part in in_rounds(trials)]
    assert sorted(rounds) == [[1, 4], [2], [3], [5], [6]]


def test_rounds_are_not_too_large() -> None:
    sizes = [len(part) for part in in_rounds(trial(number) for number in range(100))]
    assert sum(sizes) == 100
    assert max(sizes) <= 48
