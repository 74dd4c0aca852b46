"""The table of the transaction's states: complete, and explained where it refuses."""

from __future__ import annotations

import itertools

import pytest

from sparkonce.errors import FatalError, FencedError, StateError
from sparkonce.produce.states import ALLOWED, WAY_OUT, Lifecycle, State


def test_every_state_has_its_row_and_its_way_out() -> None:
    assert set(ALLOWED) == set(WAY_OUT) == set(State)


@pytest.mark.parametrize(("start", "target"), list(itertools.product(State, State)))
def test_a_step_is_in_the_table_or_refused_with_both_names(start: State, target: State) -> None:
    life = Lifecycle(start)
    if target in ALLOWED[start]:
        life.to(target)
        assert life.state is target
        return
    with pytest.raises(StateError) as refused:
        life.to(target)
    assert start.name in str(refused.value)
    assert target.name in str(refused.value)
    assert WAY_OUT[start] in str(refused.value)
    assert life.state is start


def test_every_state_can_be_closed_but_a_closed_one() -> None:
    assert all(State.CLOSED in ALLOWED[state] for state in State if state is not State.CLOSED)
    assert ALLOWED[State.CLOSED] == frozenset()


def test_the_cause_is_told_with_the_refusal() -> None:
    life = Lifecycle(State.IN_TRANSACTION)
    life.to(State.MUST_ABORT, FatalError("the disk is full"))
    with pytest.raises(StateError, match="the disk is full"):
        life.to(State.COMMITTING)


def test_a_fatal_cause_is_raised_again_as_itself() -> None:
    life = Lifecycle(State.IN_TRANSACTION)
    life.to(State.FAILED, FencedError("fenced by another"))
    with pytest.raises(FencedError, match="fenced by another"):
        life.to(State.IN_TRANSACTION)
