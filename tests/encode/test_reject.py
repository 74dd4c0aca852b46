"""Rows that can't become records are named with a reason; their neighbours are encoded."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.encode import HEADER_BYTES, Codec

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Encode = Callable[..., Any]


def reasons(result: Any) -> dict[int, str]:
    return {rejected.row: rejected.reason for rejected in result.rejected}


def test_no_topic_and_unknown_topics(encode: Encode) -> None:
    table = pa.table({"value": ["a", "b", "c", "d"], "topic": ["t", None, "nowhere", "empty"]})
    result = encode(table, topic=None, counts={"t": 2, "empty": 0})
    assert [record.row for record in result.records] == [0]
    assert [(row.row, row.topic) for row in result.rejected] == [
        (1, None), (2, "nowhere"), (3, "empty"),
    ]  # fmt: skip
    found = reasons(result)
    assert "no topic" in found[1]
    assert "'nowhere' is unknown" in found[2]
    assert "no partitions" in found[3]


def test_a_topic_column_of_the_null_type_rejects_every_row(encode: Encode) -> None:
    table = pa.table({"value": ["a", "b"], "topic": pa.nulls(2)})
    result = encode(table, topic=None)
    assert not result.batches
    assert [row.topic for row in result.rejected] == [None, None]


def test_partitions_out_of_range(encode: Encode) -> None:
    table = pa.table({"value": ["a"] * 4, "partition": pa.array([3, 4, -1, None], pa.int32())})
    result = encode(table, counts={"t": 4})
    assert [record.row for record in result.records] == [3, 0] or (
        [record.row for record in result.records] == [0, 3]
    )
    found = reasons(result)
    assert list(found) == [1, 2]
    assert "partition 4 is out of range: topic 't' has 4 partitions" in found[1]
    assert "partition -1" in found[2]


def test_partitions_that_only_rows_that_name_them_go_to(encode: Encode) -> None:
    """Of topics that have grown since the writers agreed how many partitions they choose among."""
    table = pa.table(
        {
            "topic": ["t"] * 42 + ["u"] * 2,
            "key": [str(number) for number in range(44)],
            "value": ["a"] * 44,
            "partition": pa.array([5, 6, *[None] * 40, 1, 0], pa.int32()),
        }
    )
    result = encode(table, topic=None, counts={"t": 2, "u": 1}, existing={"t": 6, "u": 2, "v": 1})
    assert {row: "t' has 6 partitions" in why for row, why in reasons(result).items()} == {1: True}
    places = {record.row: (record.topic, record.partition) for record in result.records}
    assert (places.pop(0), places.pop(42), places.pop(43)) == (("t", 5), ("u", 1), ("u", 0))
    assert set(places.values()) == {("t", 0), ("t", 1)}


def test_timestamps_that_kafka_cannot_have(encode: Encode) -> None:
    times = pa.array([-1, 0, (1 << 63) - 1], pa.int64())
    for kind in (pa.int64(), pa.timestamp("ms"), pa.timestamp("s")):
        result = encode(pa.table({"value": ["a"] * 3, "timestamp": times.cast(kind)}))
        assert [record.timestamp_ms for record in result.records] == [0]
        assert [row.row for row in result.rejected] == [0, 2]
        assert all("timestamp" in row.reason for row in result.rejected)


def test_headers_without_a_key(encode: Encode) -> None:
    headers = pa.array(
        [[{"key": "a", "value": b"1"}], [{"key": "a", "value": b"1"}, {"key": None, "value": b""}],
         None, [None], []],
        HEADERS,
    )  # fmt: skip
    result = encode(pa.table({"value": ["a"] * 5, "headers": headers}))
    assert [record.row for record in result.records] == [0, 2, 4]
    assert [row.row for row in result.rejected] == [1, 3]
    assert "header without a key" in result.rejected[0].reason


def test_a_record_at_the_limit_and_one_over_it(encode: Encode) -> None:
    table = pa.table({"value": [b"x" * 1000, b"x" * 1001, b"x"]})
    exact = HEADER_BYTES + 2 + 1 + 1 + 1 + 1 + 2 + 1000 + 1
    result = encode(table, record_bytes_max=exact, batch_bytes_max=500)
    assert sorted(record.row for record in result.records) == [0, 2]
    assert max(batch.size_bytes for batch in result.batches) == exact
    [rejected] = result.rejected
    assert rejected.row == 1
    for part in (str(exact + 1), str(exact), "record_bytes_max", "max.request.size"):
        assert part in rejected.reason


def test_a_topics_own_limit(encode: Encode) -> None:
    table = pa.table({"value": [b"x" * 1000] * 2, "topic": ["a", "b"]})
    result = encode(table, topic=None, counts={"a": 1, "b": 1}, limits={"a": 700})
    assert [record.topic for record in result.records] == ["b"]
    [rejected] = result.rejected
    assert rejected.topic == "a"
    assert "over the 700 that the topic's max.message.bytes allows" in rejected.reason


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_topics_limit_is_for_the_compressed_batch(
    encode: Encode, codec: Codec, rng: random.Random
) -> None:
    table = pa.table({"value": [b"x" * 50_000, rng.randbytes(50_000), b"y"]})
    result = encode(table, codec=codec, limits={"t": 2_000}, counts={"t": 1})
    assert [record.row for record in result.records] == [0, 2]
    assert [row.row for row in result.rejected] == [1]
    assert all(batch.size_bytes <= 2_000 for batch in result.batches)


def test_the_first_reason_is_given_once(encode: Encode) -> None:
    table = pa.table({"value": [b"x" * 5000], "topic": pa.array([None], pa.string()),
                      "timestamp": [-5], "partition": [-7]})  # fmt: skip
    result = encode(table, topic=None, record_bytes_max=1000)
    assert [row.reason.split(":")[0] for row in result.rejected] == ["no topic"]
