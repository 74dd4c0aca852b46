"""Of what was planned, how much came to pass."""

from __future__ import annotations

from outcomes import outcome
from sparkonce.verify.outcome import Verdict
from sparkonce.verify.report.firing import Firing


def test_it_counts_what_was_noted_of_trials_that_came_to_their_end() -> None:
    firing = Firing.of(
        [
            outcome(fired=(True, False)),
            outcome(fired=None),
            outcome(fired=(False, False), verdict=Verdict.FAILED),
            outcome(schedule=("Kill(point='end')",), fired=(True,), verdict=Verdict.BROKEN),
        ]
    )
    assert firing == Firing(planned=3, fired=2)
    assert firing.words == "2 of 3 (66 %)"


def test_input_and_snapshots_are_no_faults() -> None:
    """They belong to a schedule, and hurt nobody."""
    helps = (
        "MoreInput(records=30)",
        "AwaitSnapshot(point='end', nth=2)",
        "AwaitAnother(point='end')",
    )
    trial = outcome(schedule=("Kill(point='end')", *helps), fired=(False, True, True))
    assert Firing.of([trial]) == Firing(planned=1, fired=0)


def test_it_never_says_all_where_one_is_missing() -> None:
    assert Firing(1000, 999).words == "999 of 1,000 (99 %)"


def test_of_books_that_noted_nothing_it_says_nothing() -> None:
    assert Firing.of([outcome(fired=None)]).words == ""
