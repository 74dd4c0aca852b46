"""What columns are let in, and what the others are told."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkonce.encode import check_columns, highest_partitions, topics_in
from sparkonce.errors import EncodeError

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TEXTS = [
    pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()),
    pa.null(),
]  # fmt: skip
BYTES = [
    *TEXTS, pa.binary(), pa.large_binary(), pa.binary_view(),
    pa.dictionary(pa.int8(), pa.binary()),
]  # fmt: skip
GOOD = [
    *(("value", kind) for kind in BYTES),
    *(("key", kind) for kind in BYTES),
    *(("topic", kind) for kind in TEXTS),
    *(("timestamp", pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
    ("timestamp", pa.timestamp("us", "Europe/Berlin")),
    ("timestamp", pa.int64()),
    ("partition", pa.int32()),
    ("partition", pa.uint8()),
    ("partition", pa.int64()),
    ("headers", HEADERS),
    ("headers", pa.large_list(HEADERS.value_type)),
    ("headers", pa.list_(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))),
    ("headers", pa.null()),
]
BAD = [
    ("value", pa.int64()),
    ("value", pa.list_(pa.binary())),
    ("key", pa.float64()),
    ("key", pa.dictionary(pa.int32(), pa.int64())),
    ("topic", pa.binary()),
    ("timestamp", pa.int32()),
    ("timestamp", pa.date32()),
    ("timestamp", pa.string()),
    ("partition", pa.string()),
    ("partition", pa.uint64()),
    ("headers", pa.string()),
    ("headers", pa.map_(pa.string(), pa.binary())),
    ("headers", pa.list_(pa.struct([("key", pa.string())]))),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))),
]


def schema(name: str, kind: pa.DataType) -> pa.Schema:
    return pa.schema({"value": pa.binary()} | {name: kind})


@pytest.mark.parametrize(("name", "kind"), GOOD)
def test_types_let_in(name: str, kind: pa.DataType) -> None:
    check_columns(schema(name, kind), "t")


@pytest.mark.parametrize(("name", "kind"), BAD)
def test_a_wrong_type_is_named_with_what_is_allowed(name: str, kind: pa.DataType) -> None:
    with pytest.raises(EncodeError) as raised:
        check_columns(schema(name, kind), "t")
    message = str(raised.value)
    assert f"{name!r}" in message
    assert str(kind) in message
    assert "must be" in message


def test_an_unknown_column_is_told_the_allowed_ones() -> None:
    with pytest.raises(
        EncodeError, match=r"'id'.*key, value, headers, timestamp, topic, partition"
    ):
        check_columns(schema("id", pa.int64()), "t")


def test_a_value_is_needed_and_a_topic_from_somewhere() -> None:
    with pytest.raises(EncodeError, match="no column 'value'"):
        check_columns(pa.schema({"key": pa.binary()}), "t")
    with pytest.raises(EncodeError, match="neither a topic nor a column"):
        check_columns(pa.schema({"value": pa.binary()}), None)


def test_doubled_columns_are_refused() -> None:
    twice = pa.schema([("value", pa.binary()), ("value", pa.binary())])
    with pytest.raises(EncodeError, match="more than one column 'value'"):
        check_columns(twice, "t")


@pytest.mark.parametrize("kind", TEXTS[:-1])
def test_topics_are_found_in_their_column(kind: pa.DataType) -> None:
    names = pa.array(["a", None, "b", "a"]).cast(kind)
    table = pa.table({"value": pa.nulls(4, pa.binary()), "topic": names})
    assert topics_in(table, None) == ["a", "b"]
    assert topics_in(table.to_batches()[0], None) == ["a", "b"]
    assert topics_in(table, "t") == ["t"]


def test_a_column_of_nulls_has_no_topics() -> None:
    table = pa.table({"value": pa.nulls(2, pa.binary()), "topic": pa.nulls(2)})
    assert topics_in(table, None) == []


def test_the_highest_partition_that_rows_name() -> None:
    table = pa.table(
        {
            "topic": ["b", "a", None, "b", "a", "c"],
            "partition": pa.array([1, None, 9, 3, -2, None], pa.int32()),
        }
    )
    assert highest_partitions(table, None) == {"a": -2, "b": 3}
    assert highest_partitions(table.to_batches()[0], None) == {"a": -2, "b": 3}
    assert highest_partitions(table, "t") == {"t": 9}


@pytest.mark.parametrize("topic", [None, "t"])
def test_rows_that_name_no_partition(topic: str | None) -> None:
    topics = pa.array(["a", "b"])
    assert highest_partitions(pa.table({"topic": topics}), topic) == {}
    assert highest_partitions(pa.table({"topic": topics, "partition": pa.nulls(2)}), topic) == {}
