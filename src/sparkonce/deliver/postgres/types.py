"""Spark's types in PostgreSQL's words."""

from __future__ import annotations

from pyspark.sql import types as t

from sparkonce.deliver.columns import NESTED
from sparkonce.errors import ConfigError

_WORDS: dict[type[t.DataType], str] = {
    t.BooleanType: "boolean",
    t.ByteType: "smallint",
    t.ShortType: "smallint",
    t.IntegerType: "integer",
    t.LongType: "bigint",
    t.FloatType: "real",
    t.DoubleType: "double precision",
    t.StringType: "text",
    t.CharType: "text",
    t.VarcharType: "text",
    t.BinaryType: "bytea",
    t.DateType: "date",
    t.TimestampType: "timestamp with time zone",
    t.TimestampNTZType: "timestamp without time zone",
    t.DayTimeIntervalType: "interval",
}


def type_of(kind: t.DataType) -> str:
    """In a table that we make."""
    return "jsonb" if isinstance(kind, NESTED) else staged_type_of(kind)


def staged_type_of(kind: t.DataType) -> str:
    """On the stage, where nested values are the text that Spark made of them."""
    if isinstance(kind, NESTED):
        return "text"
    if isinstance(kind, t.DecimalType):
        return f"numeric({kind.precision}, {kind.scale})"
    word = _WORDS.get(type(kind))
    if word is None:
        raise ConfigError(
            f"type {kind.simpleString()} has no counterpart in PostgreSQL: cast it to one that "
            "has, to string for example"
        )
    return word
