"""Rows of an outbox become what the Kafka sink takes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, DoubleType, LongType, StringType

from sparkonce.encode.columns import check_columns
from sparkonce.errors import ConfigError
from sparkonce.ingest.arrow import arrow_schema, cast
from sparkonce.ingest.outbox import as_headers, outbox_columns, outbox_schema
from sparkonce.ingest.table import Column
from sparkonce.stream.kafka_settings import check_schema


def columns(**kinds: DataType | None) -> list[Column]:
    return [
        Column(name=name, declared="d", kind=kind, nullable=True, read=name)
        for name, kind in kinds.items()
    ]


TABLE = columns(
    id=LongType(),
    VALUE=StringType(),
    headers=StringType(),
    key=BinaryType(),
    topic=StringType(),
    note=DoubleType(),
)


def test_the_sink_takes_what_the_outbox_gives() -> None:
    schema = outbox_schema(TABLE)
    assert schema.simpleString() == (
        "struct<topic:string,key:binary,value:binary,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert check_schema(schema, None) == ["key", "value", "headers", "topic"]
    check_columns(arrow_schema(schema), None)
    assert [column.name for column in outbox_columns(TABLE)] == ["topic", "key", "VALUE", "headers"]


def test_text_becomes_bytes_and_json_headers() -> None:
    schema = arrow_schema(outbox_schema(TABLE))
    raw = pa.record_batch(
        {
            "topic": ["a", "b", "c"],
            "key": pa.array([b"\xff", None, b""]),
            "value": ["ä", None, ""],
            "headers": [
                '{"one": "1", "number": 1.5, "none": null, "list": [1, 2]}',
                '[{"key": "same", "value": "x"}, {"key": "same", "value": "y"}]',
                None,
            ],
        }
    )
    columns = [
        (as_headers if field.name == "headers" else cast)(column, field.type)
        for column, field in zip(raw.columns, schema, strict=True)
    ]
    rows: Any = pa.RecordBatch.from_arrays(columns, schema=schema).to_pylist()
    assert [row["value"] for row in rows] == ["ä".encode(), None, b""]
    assert [row["key"] for row in rows] == [b"\xff", None, b""]
    assert [[(each["key"], each["value"]) for each in row["headers"] or []] for row in rows] == [
        [("one", b"1"), ("number", b"1.5"), ("none", None), ("list", b"[1,2]")],
        [("same", b"x"), ("same", b"y")],
        [],
    ]
    assert rows[2]["headers"] is None


@pytest.mark.parametrize("text", ["no json", "1", '["a"]', '[{"key": 1, "value": "x"}]'])
def test_headers_that_are_none_are_told(text: str) -> None:
    kind = arrow_schema(outbox_schema(TABLE)).field("headers").type
    with pytest.raises(ValueError, match="headers must be a JSON object"):
        as_headers(pa.array([text]), kind)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (columns(id=LongType()), "no column 'value'"),
        (columns(value=LongType()), "column 'value' is of type"),
        (columns(value=StringType(), topic=BinaryType()), "column 'topic' is of type"),
        (columns(value=StringType(), headers=None), "column 'headers' is of type"),
    ],
)
def test_a_table_that_is_no_outbox_is_refused(table: list[Column], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        outbox_schema(table)
