"""The demo's count on histories made by hand, and what it concludes from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkonce.console.payments import BATCHES, Balance, Payment, Payments
from sparkonce.console.tally import Tally, tally
from sparkonce.console.trial import Outcome, complaints, draw_deaths

A1, A3, A4 = Balance("a", 1, 10), Balance("a", 3, 25), Balance("a", 4, 30)
B1, B2 = Balance("b", 1, 7), Balance("b", 2, 9)
DUE = [A1, B1, A3, A4, B2]
EXACT = Tally(read=5, lost=0, repeated=0, reordered=0, wrong=0, counted=6)


def test_the_count_of_what_is_whole() -> None:
    assert tally(DUE, DUE) == EXACT
    assert EXACT.is_exact


def test_accounts_may_be_read_in_any_order_among_themselves() -> None:
    assert tally(DUE, [B1, B2, A1, A3, A4]) == EXACT


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([A1, B1, A3, A4], Tally(4, 1, 0, 0, 0, counted=5)),
        # The last balances are right, and yet one that was due is missing.
        ([A1, B1, A4, B2], Tally(4, 1, 0, 0, 0, counted=6)),
        ([], Tally(0, 5, 0, 0, 0, counted=0)),
        ([*DUE, B2], Tally(6, 0, 1, 0, 0, counted=6)),
        ([A1, B1, A3, A3, A4, B2], Tally(6, 0, 1, 0, 0, counted=6)),
        (DUE * 2, Tally(10, 0, 5, 0, 0, counted=6)),
        ([A1, B1, A4, A3, B2], Tally(5, 0, 0, 1, 0, counted=5)),
        # One lost and another twice: the sums alone would look right.
        ([A1, A1, A3, A4, B2], Tally(5, 1, 1, 0, 0, counted=6)),
        # A batch that went into the state twice.
        ([A1, B1, Balance("a", 5, 40), A4, B2], Tally(5, 1, 0, 0, 1, counted=6)),
        ([A1, B1, A3, A4, Balance("b", 2, 8)], Tally(5, 1, 0, 0, 1, counted=6)),
        ([*DUE, Balance("c", 1, 1)], Tally(6, 0, 0, 0, 1, counted=7)),
    ],
    ids=[
        "last lost",
        "one in the middle lost",
        "all lost",
        "last twice",
        "one in the middle twice",
        "all twice",
        "swapped",
        "one for another",
        "counted twice",
        "wrong sum",
        "never paid",
    ],
)
def test_the_count_notices(seen: list[Balance], expected: Tally) -> None:
    assert tally(DUE, seen) == expected
    assert not tally(DUE, seen).is_exact


def test_what_is_due_is_each_batch_s_accounts_as_they_are_behind_it() -> None:
    each = [("a", 10), ("b", 7), ("a", 5), ("a", 10), ("b", 2), ("a", 5)]
    payments = Payments(tuple(Payment(*one) for one in each), per_batch=2)
    assert list(payments.due()) == [A1, B1, A3, A4, B2]


def test_the_same_seed_draws_the_same_payments_and_deaths() -> None:
    for seed in range(200):
        first, second = draw_deaths(seed)
        assert (first, second) == draw_deaths(seed)
        assert 0 < first < second < BATCHES - 1
    assert Payments.draw(1, 1000) == Payments.draw(1, 1000) != Payments.draw(2, 1000)


@pytest.mark.parametrize("count", [1000, 1001, 1999, 10_000, 12_345])
def test_however_many_payments_make_ten_batches(count: int) -> None:
    payments = Payments.draw(0, count)
    assert len(payments.each) == count
    assert -(-count // payments.per_batch) == BATCHES
    last = {balance.account: balance for balance in payments.due()}
    assert sum(balance.count for balance in last.values()) == count
    amounts = sum(payment.amount for payment in payments.each)
    assert sum(balance.sum for balance in last.values()) == amounts


OURS = Outcome(EXACT, kills=2, starts=3)
THEIRS = Outcome(replace(EXACT, read=6, repeated=1), kills=2, starts=3)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (replace(OURS, tally=replace(EXACT, lost=1)), THEIRS, "lost 1"),
        (replace(OURS, tally=replace(EXACT, repeated=1)), THEIRS, "repeated 1"),
        (replace(OURS, tally=replace(EXACT, reordered=1)), THEIRS, "reordered 1"),
        (replace(OURS, tally=replace(EXACT, wrong=1)), THEIRS, "wrong 1"),
        (replace(OURS, tally=replace(EXACT, counted=5)), THEIRS, "5 payments are in"),
        (replace(OURS, kills=1), THEIRS, "driver of sparkonce was killed 1 times"),
        (OURS, replace(THEIRS, kills=0), "driver of Spark's own sink was killed 0 times"),
        (OURS, replace(THEIRS, tally=EXACT), "harmless"),
    ],
)
def test_a_run_that_does_not_show_it_fails(ours: Outcome, theirs: Outcome, said: str) -> None:
    (complaint,) = complaints(5, 6, ours, theirs)
    assert said in complaint


def test_a_run_that_shows_it_does_not_fail() -> None:
    assert not complaints(5, 6, OURS, THEIRS)
