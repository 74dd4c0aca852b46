"""Columns of one length are joined another way than others, with the same bytes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkonce.encode.join import join_rows
from sparkonce.encode.varint import constant, to_arrow, varints


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    count=st.sampled_from([1, 2, 300, 3000]),
    growth=st.sampled_from([0, 1, 50]),
    ragged=st.booleans(),
    large=st.booleans(),
    cuts=st.sets(st.integers(1, 2999)),
)
def test_bytes_lie_side_by_side_and_are_cut_at_the_edges(
    lengths: list[int], count: int, growth: int, ragged: bool, large: bool, cuts: set[int]
) -> None:
    kind = pa.large_binary() if large else pa.binary()
    numbers = np.arange(count, dtype=np.int64) * growth
    content = [
        [(b"%030d" % (at * 31 + column))[30 - length + (at % 2 if ragged and length else 0) :]
         for at in range(count)]
        for column, length in enumerate(lengths)
    ]  # fmt: skip
    columns = [varints(numbers), constant(b"\x00"), *(pa.array(each, kind) for each in content)]
    edges = [0, *sorted(cut for cut in cuts if cut < count), count]
    found = [bytes(piece) for piece in join_rows(columns, np.array(edges))]

    written = to_arrow(varints(np.append(numbers, 0))).to_pylist()
    rows = [written[at] + b"\x00" + b"".join(each[at] for each in content) for at in range(count)]
    assert found == [b"".join(rows[start:end]) for start, end in pairwise(edges)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_nulls_take_no_bytes(kind: pa.DataType) -> None:
    column = pa.array([b"ab", None, b"cd"] * 200, kind)
    [joined] = join_rows([constant(b"."), column], np.array([0, 600]))
    assert bytes(joined) == b".ab..cd" * 200
