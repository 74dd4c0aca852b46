"""What a guarantee permits and excludes, and when the faults of a verification were too weak."""

from __future__ import annotations

from typing import Any

import pytest

from sparkonce.guarantees import Guarantee
from sparkonce.verify.outcome import Defect, Finding, Outcome, Verdict
from sparkonce.verify.promises import EXCLUDED, SHOWS, Missing, judge, judge_control, missing

PERMITTED = {
    Guarantee.NONE: {
        Defect.LOST, Defect.REPEATED, Defect.REORDERED, Defect.TORN, Defect.SPLIT, Defect.OFFSETS,
        Defect.STATE, Defect.UNMARKED,
    },
    Guarantee.AT_MOST_ONCE: {
        Defect.LOST, Defect.TORN, Defect.SPLIT, Defect.OFFSETS, Defect.STATE, Defect.UNMARKED,
    },
    Guarantee.AT_LEAST_ONCE: {
        Defect.REPEATED, Defect.TORN, Defect.SPLIT, Defect.OFFSETS, Defect.STATE,
    },
    Guarantee.EXACTLY_ONCE: set(),
}  # fmt: skip


def findings(*defects: Defect) -> tuple[Finding, ...]:
    return tuple(Finding(defect, 1, ("1",)) for defect in defects)


def an_outcome(guarantee: Guarantee, *defects: Defect, **changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "number": 1,
        "seed": 7,
        "pipeline": "stream",
        "guarantee": guarantee.value,
        "family": "crash",
        "schedule": (),
        "verdict": judge(guarantee, findings(*defects)),
        "findings": findings(*defects),
        "records": 100,
        "duration_s": 1.0,
    }
    return Outcome(**values | changes)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_every_guarantee_keeps_its_promise_where_nothing_is_found(guarantee: Guarantee) -> None:
    assert judge(guarantee, ()) is Verdict.KEPT


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("defect", Defect)
def test_each_defect_breaks_a_guarantee_or_is_permitted(
    guarantee: Guarantee, defect: Defect
) -> None:
    is_permitted = defect in PERMITTED[guarantee]
    assert judge(guarantee, findings(defect)) is (Verdict.KEPT if is_permitted else Verdict.BROKEN)


def test_one_excluded_finding_among_permitted_ones_breaks_the_promise() -> None:
    found = findings(Defect.REPEATED, Defect.LOST, Defect.STATE)
    assert judge(Guarantee.AT_LEAST_ONCE, found) is Verdict.BROKEN


@pytest.mark.parametrize("guarantee", Guarantee)
def test_what_may_happen_is_what_the_guarantee_says_of_itself(guarantee: Guarantee) -> None:
    assert (Defect.LOST not in EXCLUDED[guarantee]) is guarantee.may_lose
    assert (Defect.REPEATED not in EXCLUDED[guarantee]) is guarantee.may_repeat
    assert (Defect.LOST in SHOWS[guarantee]) is guarantee.may_lose
    assert (Defect.REPEATED in SHOWS[guarantee]) is guarantee.may_repeat


@pytest.mark.parametrize("guarantee", Guarantee)
def test_nothing_has_to_be_shown_that_would_break_the_promise(guarantee: Guarantee) -> None:
    assert SHOWS[guarantee] <= {Defect.LOST, Defect.REPEATED}
    assert not SHOWS[guarantee] & EXCLUDED[guarantee]


def test_a_stronger_guarantee_excludes_what_weaker_ones_exclude() -> None:
    for weaker in (Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE):
        assert EXCLUDED[Guarantee.NONE] < EXCLUDED[weaker] < EXCLUDED[Guarantee.EXACTLY_ONCE]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ((Defect.LOST, Defect.REPEATED), Verdict.SHOWN),
        ((Defect.LOST, Defect.REPEATED, Defect.STATE), Verdict.SHOWN),
        ((Defect.LOST,), Verdict.WEAK),
        ((Defect.STATE,), Verdict.WEAK),
        ((), Verdict.WEAK),
    ],
)
def test_a_control_has_to_show_all_that_it_must(
    found: tuple[Defect, ...], verdict: Verdict
) -> None:
    assert judge_control((Defect.LOST, Defect.REPEATED), findings(*found)) is verdict


def test_a_control_with_nothing_to_show_is_weak() -> None:
    assert judge_control((), findings(Defect.LOST)) is Verdict.WEAK


def test_nothing_is_missing_when_the_trials_together_showed_it_all() -> None:
    outcomes = [
        an_outcome(Guarantee.NONE, Defect.LOST),
        an_outcome(Guarantee.NONE, Defect.REPEATED, family="network"),
        an_outcome(Guarantee.AT_MOST_ONCE, Defect.LOST),
        an_outcome(Guarantee.AT_LEAST_ONCE),
        an_outcome(Guarantee.AT_LEAST_ONCE, Defect.REPEATED),
        an_outcome(Guarantee.EXACTLY_ONCE),
    ]
    assert missing(outcomes) == []


def test_what_no_trial_showed_is_missing_for_its_pipeline_and_guarantee() -> None:
    outcomes = [
        an_outcome(Guarantee.NONE),
        an_outcome(Guarantee.AT_LEAST_ONCE, Defect.REPEATED),
        an_outcome(Guarantee.AT_LEAST_ONCE, Defect.LOST, pipeline="batch"),
        an_outcome(Guarantee.EXACTLY_ONCE, Defect.LOST),
    ]
    assert missing(outcomes) == [
        Missing("stream", Guarantee.NONE, (Defect.LOST, Defect.REPEATED)),
        Missing("batch", Guarantee.AT_LEAST_ONCE, (Defect.REPEATED,)),
    ]


def test_a_trial_that_could_not_be_run_shows_nothing() -> None:
    broken_off = an_outcome(Guarantee.AT_MOST_ONCE, Defect.LOST, verdict=Verdict.FAILED)
    assert missing([broken_off]) == [Missing("stream", Guarantee.AT_MOST_ONCE, (Defect.LOST,))]


def test_without_outcomes_nothing_is_missing() -> None:
    assert missing([]) == []
