"""Columns as a database gives them, cast to the types that Spark expects; and values that can't be.

A column is cast as a whole. Only where that fails are its values looked at more closely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

UNFIT: Final = (ArithmeticError, TypeError, ValueError)
"""What a value raises that does not fit; Arrow's own errors of this sort are ValueErrors."""
_DIGITS_MAX: Final = 76
"""Of a decimal in Arrow."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark checks it before it takes a batch."""
    return to_arrow_schema(schema, timezone="UTC")


def pieces(batches: Iterator[Any], rows_max: int) -> Iterator[Any]:
    """No piece with more rows than that; nothing is copied."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows_max):
            yield batch.slice(start, rows_max)


def converted(
    column: Any, convert: Callable[[Any], Any], kind: pa.DataType, first: int = 0
) -> tuple[Any, dict[int, Exception]]:
    """The column as `convert` makes it, with nulls for values that do not fit; and why, by row."""
    try:
        return convert(column), {}
    except UNFIT as error:
        if len(column) == 0:
            raise
        if len(column) == 1:
            return pa.nulls(1, kind), {first: error}
    # A few of many: halves without any are converted at once.
    middle = len(column) // 2
    one, unfit = converted(column.slice(0, middle), convert, kind, first)
    other, more = converted(column.slice(middle), convert, kind, first + middle)
    return pa.concat_arrays([one, other]), unfit | more


def cast(column: Any, kind: pa.DataType) -> Any:
    """Without loss."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if column.type == kind:
        return column
    if _are_decimals_of_text(column.type, kind):
        return _decimals(column, kind)
    are_lists = pa.types.is_list(column.type) and pa.types.is_list(kind)
    if are_lists and _are_decimals_of_text(column.type.value_type, kind.value_type):
        return _lists_of_decimals(column, kind)
    return column.cast(kind)


def _are_decimals_of_text(given: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(pa.types.is_string(given) and pa.types.is_decimal128(wanted))


def _lists_of_decimals(column: Any, kind: pa.DataType) -> Any:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
    offsets = pa.array(accumulate(lengths, initial=0), pa.int32())
    elements = _decimals(column.flatten(), kind.value_type)
    return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=column.is_null())


def _decimals(column: Any, kind: pa.DataType) -> Any:
    """Arrow's own way from text to decimals gives wrong numbers for some that are too large."""
    longest = pc.max(pc.utf8_length(column)).as_py() or 0
    if longest + kind.scale > _DIGITS_MAX:
        return pa.array([text and Decimal(text) for text in column.to_pylist()], type=kind)
    return column.cast(pa.decimal256(_DIGITS_MAX, kind.scale)).cast(kind)


def from_values(
    values: Sequence[Any], read: Callable[[Any], Any], kind: pa.DataType
) -> tuple[Any, list[int]]:
    """A column of Python's values, where the database has no Arrow of its own; with nulls for
    those that do not fit, and their rows."""
    try:
        return pa.array([read(value) for value in values], type=kind), []
    except UNFIT:
        found = [_fitting(value, read, kind) for value in values]
    unfit = [
        row
        for row, (value, fitting) in enumerate(zip(values, found, strict=True))
        if fitting is None and value is not None
    ]
    return pa.array(found, type=kind), unfit


def _fitting(value: Any, read: Callable[[Any], Any], kind: pa.DataType) -> Any:
    try:
        taken = read(value)
        pa.array([taken], type=kind)
    except UNFIT:
        return None
    return taken
