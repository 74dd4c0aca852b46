"""Spark's types in DuckDB's words; nested ones are its own too."""

from __future__ import annotations

from pyspark.sql import types as t

from sparkonce.deliver.sql import quoted
from sparkonce.errors import ConfigError

_WORDS: dict[type[t.DataType], str] = {
    t.BooleanType: "BOOLEAN",
    t.ByteType: "TINYINT",
    t.ShortType: "SMALLINT",
    t.IntegerType: "INTEGER",
    t.LongType: "BIGINT",
    t.FloatType: "FLOAT",
    t.DoubleType: "DOUBLE",
    t.StringType: "VARCHAR",
    t.CharType: "VARCHAR",
    t.VarcharType: "VARCHAR",
    t.BinaryType: "BLOB",
    t.DateType: "DATE",
    t.TimestampType: "TIMESTAMP WITH TIME ZONE",
    t.TimestampNTZType: "TIMESTAMP",
}


def type_of(kind: t.DataType) -> str:
    if isinstance(kind, t.DecimalType):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if isinstance(kind, t.ArrayType):
        return f"{type_of(kind.elementType)}[]"
    if isinstance(kind, t.MapType):
        return f"MAP({type_of(kind.keyType)}, {type_of(kind.valueType)})"
    if isinstance(kind, t.StructType):
        fields = (f"{quoted(each.name)} {type_of(each.dataType)}" for each in kind.fields)
        return f"STRUCT({', '.join(fields)})"
    word = _WORDS.get(type(kind))
    if word is None:
        raise ConfigError(
            f"type {kind.simpleString()} has no counterpart in DuckDB: cast it to one that has, "
            "to string for example"
        )
    return word
