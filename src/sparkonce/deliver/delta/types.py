"""Spark's types as Delta keeps them; they are the same but for a few, which are refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark.sql import types as t

from sparkonce.errors import ConfigError

_SAME: tuple[type[t.DataType], ...] = (
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.FloatType,
    t.DoubleType,
    t.DecimalType,
    t.BinaryType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
)
_TEXT = (t.StringType, t.CharType, t.VarcharType)


def type_of(kind: t.DataType) -> str:
    return plain(kind).simpleString()


def plain(kind: t.DataType) -> t.DataType:
    """Without what makes no difference to values: lengths, collations, who may be null."""
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(plain(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(plain(kind.keyType), plain(kind.valueType))
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(f.name, plain(f.dataType)) for f in kind.fields])
    if isinstance(kind, _TEXT):
        return t.StringType()
    if type(kind) not in _SAME:
        raise ConfigError(
            f"type {kind.simpleString()} has no counterpart in Delta: cast it to one that has, to "
            "string for example"
        )
    return kind


def table_schema(fields: Iterable[t.StructField], keys: Collection[str]) -> t.StructType:
    """Of a table that we make. Its JSON is Delta's schema as well."""
    return t.StructType(
        [
            t.StructField(field.name, plain(field.dataType), field.name not in keys)
            for field in fields
        ]
    )
