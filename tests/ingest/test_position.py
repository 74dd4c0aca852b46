"""Positions and their JSON: what goes into a checkpoint comes out of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.ingest.position import Form, Mark, Position, PositionError, started

scalars = st.one_of(st.integers(), st.text())
places = st.tuples(scalars, scalars)
marks = st.builds(Mark, st.none() | places, st.integers(0, 2**64 - 1), st.none() | st.text())
positions = st.one_of(
    st.builds(Position, marks, is_start=st.booleans()),
    st.builds(Position, marks, marks, places),
)


@given(positions)
def test_json_keeps_a_position(position: Position) -> None:
    form = Form(("changed", "id"), "7")
    assert form.from_json(json.loads(json.dumps(form.to_json(position)))) == position


@given(positions)
def test_equal_positions_are_equal_as_text(position: Position) -> None:
    """Spark compares offsets as text: what comes back must be spelled as it was."""
    form = Form(("changed", "id"), "7")
    text = json.dumps(form.to_json(position))
    assert json.dumps(form.to_json(form.from_json(json.loads(text)))) == text


def test_what_users_see_in_a_checkpoint() -> None:
    assert Form(("id",)).to_json(Position(Mark((7,)))) == {"by": ["id"], "upto": [7]}
    paged = Position(Mark((7,), 740), Mark((9,), 744), (8,))
    assert Form(("id",), "75").to_json(paged) == {
        "by": ["id"],
        "system": "75",
        "xid": 740,
        "upto": [7],
        "window": {"xid": 744, "upto": [9], "after": [8]},
    }
    of_children = Position(Mark((7,), 740, "1f9c"))
    assert Form(("id",), "75").to_json(of_children) == {
        "by": ["id"],
        "system": "75",
        "xid": 740,
        "upto": [7],
        "children": "1f9c",
    }


def test_a_start_is_noted_down_by_an_end_that_differs() -> None:
    form = Form(("id",))
    start = Position(Mark((7,)), is_start=True)
    assert form.to_json(start) != form.to_json(started(start))
    assert started(start).done == start.done


def test_another_order_or_server_is_refused() -> None:
    fields = Form(("id",), "7").to_json(Position(Mark((7,), 740)))
    with pytest.raises(PositionError, match=r"position is by \['id'\]"):
        Form(("changed", "id"), "7").from_json(fields)
    with pytest.raises(PositionError, match="system identifier 7, and this is 8"):
        Form(("id",), "8").from_json(fields)
