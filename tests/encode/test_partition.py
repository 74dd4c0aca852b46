"""Keyless rows stay on a partition for a batch's bytes, over calls and topics."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from sparkonce.encode import HEADER_BYTES, NotOwned, Partitioner


def in_turn(sticky_bytes: int) -> Partitioner:
    turn = itertools.count()
    return Partitioner(sticky_bytes, lambda count: next(turn) % count)


def sizes(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_run_ends_before_it_outgrows_a_batch() -> None:
    partitioner = in_turn(HEADER_BYTES + 100)
    assert partitioner.keyless("t", sizes(40, 40, 40, 100, 1, 99), 3).tolist() == [0, 0, 1, 2, 0, 0]


def test_a_run_goes_on_in_the_next_call_for_each_topic() -> None:
    partitioner = in_turn(HEADER_BYTES + 100)
    assert partitioner.keyless("a", sizes(60), 9).tolist() == [0]
    assert partitioner.keyless("b", sizes(60), 9).tolist() == [1]
    assert partitioner.keyless("a", sizes(40, 1), 9).tolist() == [0, 2]
    assert partitioner.keyless("b", sizes(41), 9).tolist() == [3]


def test_a_record_larger_than_a_run_has_one_of_its_own() -> None:
    partitioner = in_turn(HEADER_BYTES + 100)
    assert partitioner.keyless("t", sizes(500, 500, 10, 500), 9).tolist() == [0, 1, 2, 3]


def test_a_partition_that_is_gone_is_left() -> None:
    partitioner = in_turn(HEADER_BYTES + 100)
    for _ in range(3):
        partitioner.keyless("t", sizes(100), 9)
    assert partitioner.keyless("t", sizes(1), 2).tolist() == [1]


@given(st.lists(st.integers(1, 300), max_size=80), st.integers(1, 400))
def test_cutting_the_input_changes_nothing(column: list[int], sticky_bytes: int) -> None:
    whole, piecewise = in_turn(sticky_bytes), in_turn(sticky_bytes)
    expected = whole.keyless("t", sizes(*column), 7).tolist()
    pieces = [sizes(*column[at : at + 3]) for at in range(0, len(column), 3)]
    found = [p for piece in pieces for p in piecewise.keyless("t", piece, 7).tolist()]
    assert found == expected


@given(st.lists(st.binary(max_size=12), min_size=1), st.integers(1, 1000))
def test_keyed_rows_go_by_the_positive_hash(keys: list[bytes], count: int) -> None:
    found = in_turn(1).keyed(pa.array(keys, pa.binary()), np.array([count]))
    assert found.tolist() == [(reference(key) & 0x7FFFFFFF) % count for key in keys]


def test_who_must_not_choose_refuses_rows_that_name_no_partition() -> None:
    writer = in_turn(HEADER_BYTES + 100)
    writer.choose(False)
    with pytest.raises(NotOwned, match="rows without a partition"):
        writer.keyless("t", sizes(10), 4)
    with pytest.raises(NotOwned, match="rows without a partition"):
        writer.keyed(pa.array([b"k"]), sizes(4))
    writer.choose(True)
    assert writer.keyless("t", sizes(10), 4).tolist() == [0]
