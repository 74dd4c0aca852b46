"""The outbox: a table whose rows are Kafka records, given out as the Kafka sink takes them.

Columns are `value`, and as far as the table has them `topic`, `key`, `headers` and `partition`.
Text becomes its bytes. Headers are JSON: an object, or a list of objects with `key` and `value`,
which keeps their order and may repeat a key.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    IntegralType,
    StringType,
    StructField,
    StructType,
)

from sparkonce.errors import ConfigError
from sparkonce.ingest.table import Column

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_GIVEN: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": _HEADERS,
}
_TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "partition": (IntegralType,),
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "headers": (StringType, BinaryType),
}


def outbox_columns(columns: Sequence[Column]) -> list[Column]:
    """Those of the table's columns that make a record, in the order in which they are given."""
    by_name = {column.name.lower(): column for column in columns}
    if "value" not in by_name:
        raise ConfigError(
            f"outbox=true, and the table has no column 'value': it has {', '.join(by_name)}. An "
            "outbox has value, and as needed topic, key, headers (JSON) and partition"
        )
    chosen = [by_name[name] for name in _GIVEN if name in by_name]
    for column in chosen:
        if not isinstance(column.kind, _TAKEN[column.name.lower()]):
            raise ConfigError(
                f"outbox=true, and column {column.name!r} is of type {column.declared}: topic is "
                "text, key and value are text, JSON or bytes, headers are JSON, partition is a "
                "whole number"
            )
    return chosen


def outbox_schema(columns: Sequence[Column]) -> StructType:
    names = [column.name.lower() for column in outbox_columns(columns)]
    return StructType([StructField(name, _GIVEN[name]) for name in names])


def as_headers(column: Any, kind: pa.DataType) -> Any:
    """JSON as the headers that Kafka has."""
    return pa.array([_headers(text) for text in column.to_pylist()], type=kind)


def _headers(text: str | bytes | None) -> list[dict[str, Any]] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _not_headers() from error
    if isinstance(found, dict):
        return [{"key": key, "value": _bytes(value)} for key, value in found.items()]
    if not isinstance(found, list) or not all(_is_header(each) for each in found):
        raise _not_headers()
    return [{"key": each["key"], "value": _bytes(each["value"])} for each in found]


def _is_header(value: Any) -> bool:
    return (
        isinstance(value, dict) and value.keys() == {"key", "value"} and type(value["key"]) is str
    )


def _bytes(value: Any) -> bytes | None:
    """Text as it is, other things as JSON writes them."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return text.encode()


def _not_headers() -> ValueError:
    return ValueError(
        'headers must be a JSON object, {"name": "value"}, or a list of {"key": …, "value": …}'
    )
