"""Nothing counts as shown but trials that came to their end under a fault, and kept the promise."""

from __future__ import annotations

from outcomes import lost, outcome, repeated
from sparkonce.verify.outcome import Verdict
from sparkonce.verify.report.shown import shown, shown_words, under_faults_s


def test_only_what_was_kept_under_a_fault_is_counted() -> None:
    more = "MoreInput(records=30)"
    held = shown(
        [
            outcome(),
            outcome(fired=(False, True)),
            outcome(fired=(False, False)),
            outcome(schedule=(more,), fired=(True,)),
            outcome(schedule=(), fired=()),
            outcome(fired=None),
            outcome(refused=True),
            outcome(verdict=Verdict.FAILED),
            outcome(verdict=Verdict.BROKEN, findings=(lost(1),)),
            outcome(verdict=Verdict.SHOWN, control=True, findings=(lost(1),)),
            outcome(guarantee="at_least_once", findings=(repeated(1),)),
        ]
    )
    assert held == {"exactly_once": 2, "at_least_once": 1}
    assert list(held) == ["exactly_once", "at_least_once"]
    assert shown_words(held) == "exactly_once 2, at_least_once 1"


def test_what_was_not_tried_is_not_passed_over() -> None:
    held = shown([outcome(guarantee="none", findings=(lost(1),))])
    assert shown_words(held) == "exactly_once: nothing shown, none 1"


def test_a_control_does_not_make_its_guarantee_tried() -> None:
    control = outcome(guarantee="at_least_once", control=True, verdict=Verdict.SHOWN)
    assert shown([control]) == {"exactly_once": 0}


def test_time_under_faults_is_added_up() -> None:
    assert under_faults_s([outcome(under_faults_s=1.25), outcome(under_faults_s=2.25)]) == 3.5
    assert under_faults_s([]) == 0
