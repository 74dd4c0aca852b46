"""Text that is not valid UTF-8: Spark keeps it, and no database does.

Spark takes the bytes of a string as they come, from `CAST(value AS STRING)` of a Kafka record for
example, and nothing on the way to a Parquet file looks at them: a table of Delta with one such
value can't be read any more, DuckDB can't load the batch, and PostgreSQL ends the COPY. So Spark
itself looks at every text before it leaves the JVM. It does so in generated code, which costs
little, and before nested values become JSON, in which such bytes would be replaced in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column
from pyspark.sql.functions import array_join, exists, is_valid_utf8, lit, map_keys, map_values
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

_TEXT: Final = (StringType, CharType, VarcharType)
_BETWEEN: Final = ","
"""No character has an ASCII byte within it: texts with one between them are valid together if each
of them is."""


def has_text(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return has_text(kind.elementType)
    if isinstance(kind, MapType):
        return has_text(kind.keyType) or has_text(kind.valueType)
    if isinstance(kind, StructType):
        return any(has_text(field.dataType) for field in kind.fields)
    return isinstance(kind, _TEXT)


def is_invalid(column: Column, kind: DataType) -> Column:
    """Whether there is such text in a value, at any depth; null where that is not known, which is
    no."""
    if not has_text(kind):
        return lit(False)
    if isinstance(kind, ArrayType):
        return _is_invalid_within(column, kind.elementType)
    if isinstance(kind, MapType):
        keys = _is_invalid_within(map_keys(column), kind.keyType)
        return keys | _is_invalid_within(map_values(column), kind.valueType)
    if isinstance(kind, StructType):
        column, kind = _with_distinct_names(column, kind)
        return _any(is_invalid(column.getField(f.name), f.dataType) for f in kind.fields)
    return ~is_valid_utf8(column.cast("string"))


def _is_invalid_within(column: Column, kind: DataType) -> Column:
    """In an array of them. `exists` is no generated code and takes half a microsecond for each
    element, so it is left to arrays within arrays, which have no other way."""
    if not has_text(kind):
        return lit(False)
    if isinstance(kind, StructType):
        column, kind = _with_distinct_names(column, kind, in_array=True)
        return _any(_is_invalid_within(column.getField(f.name), f.dataType) for f in kind.fields)
    if isinstance(kind, ArrayType | MapType):
        return exists(column, lambda each: is_invalid(each, kind))
    return ~is_valid_utf8(array_join(column.cast("array<string>"), _BETWEEN))


def _with_distinct_names(
    column: Column, kind: StructType, *, in_array: bool = False
) -> tuple[Column, StructType]:
    """Spark makes structs with fields `a` and `A`, and then finds neither by its name."""
    if len({name.lower() for name in kind.names}) == len(kind.names):
        return column, kind
    numbered = StructType(
        [StructField(f"{i}", f.dataType, f.nullable) for i, f in enumerate(kind.fields)]
    )
    return column.cast(ArrayType(numbered) if in_array else numbered), numbered


def _any(found: Iterable[Column]) -> Column:
    return reduce(or_, found)
