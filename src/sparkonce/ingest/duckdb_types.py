"""DuckDB's types, by the Arrow that DuckDB gives for them."""

from __future__ import annotations

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


def _struct(kind: pa.DataType) -> DataType | None:
    fields = []
    for field in kind:
        inner = spark_type(field.type)
        if inner is None:
            return None
        fields.append(StructField(field.name, inner))
    return StructType(fields)
