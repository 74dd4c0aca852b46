"""Of what was planned, how much came to pass."""

from __future__ import annotations

from outcomes import outcome
from sparkonce.verify.outcome import Verdict
from sparkonce.verify.report.firing import Firing


def test_it_counts_what_was_noted_of_trials_that_came_to_their_end() -> None:
    firing = Firing.of(
        [
            outcome(fired=(True, True, False)),
            outcome(),
            outcome(fired=(False, False), verdict=Verdict.FAILED),
            outcome(fired=(True,), verdict=Verdict.BROKEN),
        ]
    )
    assert firing == Firing(planned=4, fired=3)
    assert firing.words == "3 of 4 (75 %)"


def test_it_never_says_all_where_one_is_missing() -> None:
    assert Firing(1000, 999).words == "999 of 1,000 (99 %)"


def test_of_books_that_noted_nothing_it_says_nothing() -> None:
    assert Firing.of([outcome()]).words == ""
