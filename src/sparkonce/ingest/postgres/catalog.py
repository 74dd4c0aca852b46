"""A table as PostgreSQL's catalog has it: its columns, and what each becomes in Spark.

What Spark has no type for is read as its text. Three things that the driver for Arrow fails at, or
would garble without a word, are told as flaws instead: infinite dates and times, which Spark does
not have, times beyond 64 bits of microseconds, and arrays of several dimensions, which it would
flatten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from sparkonce.errors import ConfigError
from sparkonce.ingest.table import Column

_PLAIN: dict[str, DataType] = {
    "bool": BooleanType(),
    "int2": ShortType(),
    "int4": IntegerType(),
    "int8": LongType(),
    "float4": FloatType(),
    "float8": DoubleType(),
    "text": StringType(),
    "varchar": StringType(),
    "bpchar": StringType(),
    "bytea": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampNTZType(),
    "timestamptz": TimestampType(),
}
_WHOLE = frozenset({"int2", "int4", "int8"})
_MAY_BE_INFINITE = frozenset({"date", "timestamp", "timestamptz"})
_ORDERED = _WHOLE | _MAY_BE_INFINITE | {"text", "varchar", "uuid", "numeric"}
_TIME_END = "294247-01-10"
"""In Arrow, whose microseconds begin with 1970; those of PostgreSQL begin with 2000."""
_PRECISION_MAX = 38
_ANY_DECIMAL = DecimalType(38, 18)
"""For `numeric` without a precision, as Spark's JDBC source has it."""

# Domains are followed down to what they are made of.
_COLUMNS = """
WITH RECURSIVE attribute AS (
    SELECT attnum, attname, attnotnull, atttypid AS kind, atttypmod AS modifier,
           format_type(atttypid, atttypmod) AS declared
    FROM pg_attribute WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT attnum, attname, attnotnull OR typnotnull, typbasetype, typtypmod, declared
    FROM attribute JOIN pg_type ON pg_type.oid = kind WHERE typtype = 'd'
)
SELECT attname, attnotnull, declared, t.typname, modifier, e.typname
FROM attribute JOIN pg_type t ON t.oid = kind
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd' ORDER BY attnum
"""
_RELATION = """
SELECT c.oid, n.nspname, c.relname, c.relkind FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_ORDINARY = "r"
_TABLES = (_ORDINARY, "p")
"""Ordinary and partitioned ones: others have no transactions in their rows."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, by the names and the number that PostgreSQL has for it."""

    oid: int
    schema: str
    name: str
    has_rows: bool = True
    """A partitioned table has none of its own."""

    @property
    def sql(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


def find_relation(connection: psycopg.Connection[Any], name: str) -> Relation:
    try:
        found = connection.execute(_RELATION, [name]).fetchone()
    except psycopg.errors.InvalidName as error:
        raise ConfigError(f"dbtable={name!r} is no name of a table: {error}") from error
    if found is None:
        raise ConfigError(
            f"dbtable={name!r} is no table that this user can see: name it with its schema, and "
            "in double quotes if it was made with them"
        )
    oid, schema, table, kind = found
    if kind not in _TABLES:
        raise ConfigError(
            f"dbtable={name!r} is a view or the like, whose rows do not tell their transactions: "
            "name the table, and select in Spark"
        )
    return Relation(oid, schema, table, has_rows=kind == _ORDINARY)


def find_columns(connection: psycopg.Connection[Any], relation: Relation) -> list[Column]:
    rows = connection.execute(_COLUMNS, {"oid": relation.oid}).fetchall()
    return [_column(*row) for row in rows]


def _column(
    name: str, not_null: bool, declared: str, kind: str, modifier: int, element: str | None
) -> Column:
    at = quoted(name)
    spark, read = _array(at, element, modifier) if element else _scalar(at, kind, modifier)
    flaw = _array_flaw(at, element) if element else _flaw(at, kind)
    return Column(
        name=name,
        declared=declared,
        kind=spark,
        nullable=not not_null,
        read=read if flaw is None else f"CASE WHEN {flaw} THEN NULL ELSE {read} END",
        flaw=flaw,
        text=f"{at}::text",
        orders=None if element or kind not in _ORDERED else at if kind in _WHOLE else f"{at}::text",
        counts=None if element else _counts(at, kind),
    )


def _scalar(at: str, kind: str, modifier: int) -> tuple[DataType | None, str]:
    if kind == "numeric":
        return _decimal(modifier), f"{at}::text"
    if kind in _PLAIN:
        return _PLAIN[kind], at
    return StringType(), f"{at}::text"


def _array(at: str, element: str, modifier: int) -> tuple[DataType | None, str]:
    inner, _ = _scalar(at, element, modifier)
    if inner is None:
        return None, at
    return ArrayType(inner), at if element in _PLAIN else f"{at}::text[]"


def _flaw(at: str, kind: str) -> str | None:
    if kind not in _MAY_BE_INFINITE:
        return None
    beyond = "" if kind == "date" else f" OR {at} >= '{_TIME_END}'"
    return f"NOT isfinite({at}){beyond}"


def _array_flaw(at: str, element: str) -> str:
    flaw = _flaw("element", element)
    some = f" OR EXISTS (SELECT FROM unnest({at}) AS element WHERE {flaw})" if flaw else ""
    return f"array_ndims({at}) > 1{some}"


def _decimal(modifier: int) -> DecimalType | None:
    if modifier < 0:
        return _ANY_DECIMAL
    packed = modifier - 4
    precision, scale = packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024
    digits = max(precision - scale, 0) + max(scale, 0)  # scales may be negative, or the greater
    return DecimalType(digits, max(scale, 0)) if digits <= _PRECISION_MAX else None


def _counts(at: str, kind: str) -> str | None:
    if kind in _WHOLE:
        return at
    if kind not in _MAY_BE_INFINITE:
        return None
    number = f"{at} - DATE '1970-01-01'"
    if kind != "date":
        number = f"(extract(epoch FROM {at}) * 1000000)::bigint"
    return f"CASE WHEN {_flaw(at, kind)} THEN NULL ELSE {number} END"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
