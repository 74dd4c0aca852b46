"""Varints of whole columns are those of Kafka, one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from sparkonce.encode.varint import VALUE_END, constant, glue, to_arrow, varints, width_of

values = st.integers(-VALUE_END, VALUE_END - 1) | st.integers(-200, 200)


def reference(value: int) -> bytes:
    written = bytearray()
    encode_varint(value, written.append)
    return bytes(written)


@given(st.lists(values, min_size=2, max_size=50))
def test_a_column_is_written_as_kafka_writes_each_value(column: list[int]) -> None:
    numbers = np.array(column, dtype=np.int64)
    assert to_arrow(varints(numbers)).to_pylist() == [reference(value) for value in column]
    assert width_of(numbers).tolist() == [len(reference(value)) for value in column]


def test_every_border_between_widths() -> None:
    borders = [sign * (1 << bits) + near for bits in range(54) for sign in (1, -1)
               for near in (-1, 0, 1)]  # fmt: skip
    written = to_arrow(varints(np.array(borders, dtype=np.int64))).to_pylist()
    assert written == [reference(value) for value in borders]


@given(st.lists(st.tuples(values, values, values), min_size=2, max_size=20))
def test_glued_columns_have_the_bytes_of_each_in_order(rows: list[tuple[int, int, int]]) -> None:
    columns = [varints(np.array(column, dtype=np.int64)) for column in zip(*rows, strict=True)]
    glued = [to_arrow(column) for column in glue([columns[0], constant(b"\x00"), *columns[1:]])]
    for at, (first, second, third) in enumerate(rows):
        expected = reference(first) + b"\x00" + reference(second) + reference(third)
        parts = [part if isinstance(part, pa.Scalar) else part[at] for part in glued]
        assert b"".join(part.as_py() for part in parts) == expected


def test_narrow_columns_become_one() -> None:
    columns = [varints(np.array([value, value + 1])) for value in (100, 1, 5000)]
    assert len(glue(columns)) == 1
