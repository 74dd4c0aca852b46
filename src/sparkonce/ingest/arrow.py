"""Rows as a database gives them, made into exactly the columns that Spark expects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sparkonce.ingest.table import SourceError

_DIGITS_MAX = 76
"""Of a decimal in Arrow."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark checks it before it takes a batch."""
    return to_arrow_schema(schema, timezone="UTC")


def pieces(batches: Iterator[Any], rows_max: int) -> Iterator[Any]:
    """No piece with more rows than that; nothing is copied."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows_max):
            yield batch.slice(start, rows_max)


def fit(batch: Any, schema: pa.Schema) -> Any:
    """Columns by position, cast without loss."""
    columns = [_cast(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def from_rows(
    rows: Sequence[Sequence[Any]], schema: pa.Schema, readers: Sequence[Callable[[Any], Any]]
) -> Any:
    """From Python's values, where the database has no Arrow of its own; `readers` prepare them."""
    columns = []
    for index, (field, read) in enumerate(zip(schema, readers, strict=True)):
        try:
            columns.append(pa.array([read(row[index]) for row in rows], type=field.type))
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
            raise _unfit(field, error) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: Any, field: pa.Field) -> Any:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if column.type == field.type:
        return column
    try:
        if pa.types.is_string(column.type) and pa.types.is_decimal128(field.type):
            return _decimals(column, field.type)
        return column.cast(field.type)
    except (pa.ArrowException, ArithmeticError) as error:
        raise _unfit(field, error) from error


def _decimals(column: Any, kind: pa.DataType) -> Any:
    """Arrow's own way from text to decimals gives wrong numbers for some that are too large."""
    longest = pc.max(pc.utf8_length(column)).as_py() or 0
    if longest + kind.scale > _DIGITS_MAX:
        return pa.array([text and Decimal(text) for text in column.to_pylist()], type=kind)
    return column.cast(pa.decimal256(_DIGITS_MAX, kind.scale)).cast(kind)


def _unfit(field: pa.Field, error: Exception) -> SourceError:
    return SourceError(
        f"column {field.name!r} has a value that does not fit into {field.type}: {error}. Correct "
        "the row, or read the column as another type with .schema(…)"
    )
