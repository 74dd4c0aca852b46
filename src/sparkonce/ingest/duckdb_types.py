"""DuckDB's types, by the Arrow that DuckDB gives for them; and the values that it garbles.

In Arrow, DuckDB's infinite dates and times become the last ones there are, and whole numbers of 39
digits wrap around, all without a word.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

WHOLE_NUMBERS = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
)
_AS_TEXT = ("TIME", "TIME WITH TIME ZONE", "TIME_NS", "INTERVAL", "BIT", "BIGNUM", "UUID")
"""What Spark has no type for, or DuckDB no Arrow: read as DuckDB writes it."""

_DIGITS_38 = "9" * 38
# Unsigned numbers go into the next wider type, or a decimal.
_PLAIN: dict[pa.DataType, DataType] = {
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.uint8(): ShortType(),
    pa.uint16(): IntegerType(),
    pa.uint32(): LongType(),
    pa.uint64(): DecimalType(20, 0),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.large_string(): StringType(),
    pa.binary(): BinaryType(),
    pa.large_binary(): BinaryType(),
    pa.date32(): DateType(),
}


def as_read(name: str, declared: str) -> str:
    """SQL that gives a column's values in a type that Spark has too."""
    if declared in _AS_TEXT or declared.startswith("ENUM"):
        return f"CAST({name} AS VARCHAR)"
    return name


def spark_type(kind: pa.DataType) -> DataType | None:
    """None where Spark has no such type."""
    types = pa.types
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, pa.BaseExtensionType):
        return spark_type(kind.storage_type)
    if types.is_decimal128(kind):
        return DecimalType(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return TimestampNTZType() if kind.tz is None else TimestampType()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = spark_type(kind.value_type)
        return None if element is None else ArrayType(element)
    if types.is_map(kind):
        key, value = spark_type(kind.key_type), spark_type(kind.item_type)
        return None if key is None or value is None else MapType(key, value)
    if types.is_struct(kind):
        return _struct(kind)
    return None


def flaw_of(at: str, kind: pa.DataType, declared: str) -> str | None:
    """SQL: this value is not the same in Arrow. None where that can't be."""
    types = pa.types
    if types.is_date(kind) or types.is_timestamp(kind):
        return f"isinf({at})"
    if types.is_decimal128(kind):
        return f"{at} NOT BETWEEN -{_DIGITS_38} AND {_DIGITS_38}" if "HUGEINT" in declared else None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        flaw = flaw_of("each", kind.value_type, declared)
        return flaw and f"len(list_filter({at}, each -> {flaw})) > 0"
    if types.is_map(kind):
        keys = flaw_of(f"map_keys({at})", pa.list_(kind.key_type), declared)
        items = flaw_of(f"map_values({at})", pa.list_(kind.item_type), declared)
        return _any([keys, items])
    if types.is_struct(kind):
        names = [field.name.replace("'", "''") for field in kind]
        return _any(
            flaw_of(f"struct_extract({at}, '{name}')", field.type, declared)
            for name, field in zip(names, kind, strict=True)
        )
    return None


def _any(flaws: Iterable[str | None]) -> str | None:
    return " OR ".join(f"({flaw})" for flaw in flaws if flaw) or None


def _struct(kind: pa.DataType) -> DataType | None:
    fields = []
    for field in kind:
        inner = spark_type(field.type)
        if inner is None:
            return None
        fields.append(StructField(field.name, inner))
    return StructType(fields)
