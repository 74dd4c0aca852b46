"""SQLite's types: what a column was declared with, and how its values become Spark's.

Values may be of another type than their column; one that does not fit is told, as its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_PRECISION_MAX = 38
_NAMED: dict[str, DataType] = {
    "BOOLEAN": BooleanType(),
    "BOOL": BooleanType(),
    "DATE": DateType(),
    "DATETIME": TimestampNTZType(),
    "TIMESTAMP": TimestampNTZType(),
    "JSON": StringType(),
    "UUID": StringType(),
}
# SQLite's own rules of affinity, in their order (https://www.sqlite.org/datatype3.html).
_CONTAINED: list[tuple[str, DataType]] = [
    ("INT", LongType()),
    ("CHAR", StringType()),
    ("CLOB", StringType()),
    ("TEXT", StringType()),
    ("BLOB", BinaryType()),
    ("REAL", DoubleType()),
    ("FLOA", DoubleType()),
    ("DOUB", DoubleType()),
]


def spark_type(declared: str) -> DataType | None:
    """None: values may be of any type."""
    name = declared.strip().upper()
    if decimal := _DECIMAL.fullmatch(name):
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        return DecimalType(precision, scale) if scale <= precision <= _PRECISION_MAX else None
    if name in _NAMED:
        return _NAMED[name]
    return next((kind for part, kind in _CONTAINED if part in name), None)


def to_text(stored: bytes) -> str | bytes:
    """SQLite keeps any bytes as text. Those that are none become no text."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def text_of(value: Any) -> str:
    """To find a value by that does not fit."""
    return "\\x" + value.hex() if isinstance(value, bytes) else str(value)


def reader_of(kind: DataType | None) -> Callable[[Any], Any]:
    """Makes a value of SQLite one that Arrow takes for the type."""
    reader = _READERS.get(type(kind), _as_it_is)

    def read(value: Any) -> Any:
        return None if value is None else reader(value)

    return read


def _as_it_is(value: Any) -> Any:
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int):  # Arrow would cut off what is behind the point
        raise ValueError(f"{value!r} is no whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _bool(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value!r} is neither 0 nor 1")
    return bool(value)


def _decimal(value: Any) -> Decimal:
    return Decimal(repr(value) if isinstance(value, float) else value)


def _date(value: Any) -> date:
    return date.fromisoformat(value)


def _local_time(value: Any) -> datetime:
    """Times with a zone are taken to UTC, which is what SQLite's own functions give."""
    time = datetime.fromisoformat(value)
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)


def _time(value: Any) -> datetime:
    time = datetime.fromisoformat(value)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


_READERS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((ByteType, ShortType, IntegerType, LongType), _whole),
    StringType: _text,
    BinaryType: _bytes,
    BooleanType: _bool,
    DecimalType: _decimal,
    DateType: _date,
    TimestampNTZType: _local_time,
    TimestampType: _time,
}
