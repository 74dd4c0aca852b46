"""Whatever is encoded is read back equal by a foreign reader: columns, nulls, codecs, splits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from sparkonce.encode import HEADER_BYTES, Codec, Encoder, Partitioner
from sparkonce.errors import EncodeError

Encode = Callable[..., Any]
Row = dict[str, Any]

NOW_MS = 1_700_000_000_123
COUNTS = {"a": 1, "b": 5, "c": 300}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())]
TIMES = [pa.int64(), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns")]

header = st.fixed_dictionaries(
    {"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=8)}
)
row = st.fixed_dictionaries({
    "key": st.none() | st.binary(max_size=12),
    "value": st.none() | st.binary(max_size=300),
    "headers": st.none() | st.lists(header, max_size=3),
    "timestamp": st.none() | st.integers(0, 9_000_000_000_000),
    "topic": st.sampled_from(sorted(COUNTS)),
    "partition": st.none() | st.just(0),
})  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], pa.Table]:
    rows = draw(st.lists(row, max_size=60))
    kinds = {
        "key": draw(st.sampled_from(BYTES)),
        "value": draw(st.sampled_from(BYTES)),
        "headers": HEADERS,
        "timestamp": draw(st.sampled_from(TIMES)),
        "topic": draw(st.sampled_from([pa.string(), pa.dictionary(pa.int8(), pa.string())])),
        "partition": draw(st.sampled_from([pa.int32(), pa.int64()])),
    }
    dropped = draw(st.sets(st.sampled_from(["key", "headers", "timestamp", "partition"])))
    kept = [name for name in kinds if name not in dropped]
    rows = [{name: a_row[name] if name in kept else None for name in kinds} for a_row in rows]
    columns = {name: _column([a_row[name] for a_row in rows], kinds[name]) for name in kept}
    whole = pa.table(columns)
    if draw(st.booleans()):  # many chunks, and slices within them
        at = draw(st.integers(0, len(rows)))
        whole = pa.concat_tables([whole.slice(0, at), whole.slice(at)])
    return rows, whole


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms")).cast(kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def expected(at: int, a_row: Row) -> tuple[Any, ...]:
    headers = [(each["key"], each["value"]) for each in a_row["headers"] or []]
    time = NOW_MS if a_row["timestamp"] is None else a_row["timestamp"]
    return at, a_row["topic"], time, a_row["key"], a_row["value"], headers


@settings(max_examples=300, deadline=None)
@given(
    made=tables(),
    codec=st.sampled_from(list(Codec)),
    batch_bytes_max=st.sampled_from([70, 200, 1000, 100_000]),
    chunk_bytes=st.sampled_from([1, 500, 1 << 20]),
    sticky_bytes=st.sampled_from([100, 1000]),
)
def test_everything_is_read_back_in_order_and_in_bounds(
    encode: Encode, made: tuple[list[Row], pa.Table], codec: Codec, batch_bytes_max: int,
    chunk_bytes: int, sticky_bytes: int,
) -> None:  # fmt: skip
    rows, table = made
    result = encode(
        table, topic=None, counts=COUNTS, limits={"b": 150}, codec=codec,
        batch_bytes_max=batch_bytes_max, record_bytes_max=10_000, chunk_bytes=chunk_bytes,
        sticky_bytes=sticky_bytes,
    )  # fmt: skip
    found = sorted(result.records, key=lambda record: record.row)
    read = [(r.row, r.topic, r.timestamp_ms, r.key, r.value, r.headers) for r in found]
    refused = {rejected.row for rejected in result.rejected}
    assert read == [expected(at, a_row) for at, a_row in enumerate(rows) if at not in refused]
    assert all("max.message.bytes" in rejected.reason for rejected in result.rejected)

    order = defaultdict(list)
    for record in result.records:
        order[record.topic, record.partition].append(record.row)
        a_row = rows[record.row]
        if a_row["partition"] is not None:
            assert record.partition == a_row["partition"]
        elif a_row["key"] is not None:
            assert record.partition == (murmur2(a_row["key"]) & 0x7FFFFFFF) % COUNTS[record.topic]
        assert 0 <= record.partition < COUNTS[record.topic]
    assert all(numbers == sorted(numbers) for numbers in order.values())

    for batch in result.batches:
        limit = 150 if batch.topic == "b" else 10_000
        assert batch.size_bytes <= (limit if batch.count == 1 else min(limit, batch_bytes_max))


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 20_000),
    key_bytes=st.none() | st.integers(0, 20),
    value_bytes=st.integers(0, 100),
    step_ms=st.sampled_from([None, 0, 1, 1000]),
    partitions=st.integers(1, 20),
    large=st.booleans(),
)
def test_rows_of_one_length(
    encode: Encode, count: int, key_bytes: int | None, value_bytes: int, step_ms: int | None,
    partitions: int, large: bool,
) -> None:  # fmt: skip
    kind = pa.large_binary() if large else pa.binary()
    columns = {"value": pa.array([b"%0*d" % (value_bytes, at) for at in range(count)], kind)}
    columns["value"] = pa.array([text[-value_bytes:] if value_bytes else b""
                                 for text in columns["value"].to_pylist()], kind)  # fmt: skip
    if key_bytes is not None:
        keys = [(b"%020d" % (at * 7919))[20 - key_bytes :] for at in range(count)]
        columns["key"] = pa.array(keys, pa.binary())
    if step_ms is not None:
        columns["timestamp"] = pa.array(np.arange(count) * step_ms)
    result = encode(pa.table(columns), counts={"t": partitions})
    found = sorted(result.records, key=lambda record: record.row)
    assert [record.row for record in found] == list(range(count))
    assert [record.value for record in found] == columns["value"].to_pylist()
    if key_bytes is not None:
        assert [record.key for record in found] == keys
    if step_ms is not None:
        assert [record.timestamp_ms for record in found] == [at * step_ms for at in range(count)]
    else:
        assert {record.timestamp_ms for record in found} == {NOW_MS}


@pytest.mark.parametrize("codec", list(Codec))
def test_noise_that_cannot_be_compressed_stays_within_the_limit(
    encode: Encode, codec: Codec
) -> None:
    noise = np.random.default_rng(5).bytes(100_000)
    table = pa.table({"value": [noise[at : at + 1000] for at in range(0, 100_000, 1000)]})
    result = encode(table, codec=codec, batch_bytes_max=10_200, counts={"t": 1})
    assert len(result.records) == 100
    assert all(batch.size_bytes <= 10_200 for batch in result.batches)


def test_the_argument_wins_over_the_column_as_in_spark(encode: Encode) -> None:
    table = pa.table({"value": ["a", "b"], "topic": ["b", None]})
    result = encode(table, topic="t", counts={"t": 1})
    assert [record.topic for record in result.records] == ["t", "t"]


def test_bytes_under_a_null_are_not_sent(encode: Encode) -> None:
    offsets = np.array([0, 2, 4, 6], np.int32)
    buffers = [pa.py_buffer(content) for content in (b"\x05", offsets, b"aabbcc")]
    hidden = pa.Array.from_buffers(pa.binary(), 3, buffers)
    result = encode(pa.table({"key": hidden, "value": hidden}), counts={"t": 1})
    assert [record.value for record in result.records] == [b"aa", None, b"cc"]
    assert [record.key for record in result.records] == [b"aa", None, b"cc"]


def test_headers_under_a_null_list_are_not_sent(encode: Encode) -> None:
    pairs = pa.array([{"key": name, "value": b"1"} for name in "abc"], HEADERS.value_type)
    offsets = np.array([0, 1, 2, 3], np.int32)
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(offsets)]
    hidden = pa.Array.from_buffers(HEADERS, 3, buffers, children=[pairs])
    result = encode(pa.table({"value": ["x"] * 3, "headers": hidden}).slice(1), counts={"t": 1})
    assert [record.headers for record in result.records] == [[], [("c", b"1")]]


def test_null_columns_are_tombstones_without_keys(encode: Encode) -> None:
    nulls = pa.nulls(3)
    names = ("key", "value", "headers", "timestamp", "partition")
    result = encode(pa.table(dict.fromkeys(names, nulls)))
    assert [(r.key, r.value, r.headers, r.timestamp_ms) for r in result.records] == [
        (None, None, [], NOW_MS)
    ] * 3


def test_keyless_rows_are_not_copied_about(encode: Encode) -> None:
    result = encode(pa.table({"value": ["x" * 1000] * 3000}), sticky_bytes=1_000_000)
    assert all(isinstance(batch.rows, range) for batch in result.batches)
    assert len(result.batches) == 4


def test_a_run_of_keyless_rows_is_one_batch(encode: Encode) -> None:
    result = encode(
        pa.table({"value": ["x" * 100] * 30_000}), sticky_bytes=1_000_000, batch_bytes_max=1_000_000
    )
    sizes = [batch.size_bytes for batch in result.batches]
    assert all(size > 950_000 for size in sizes[:-1])


def test_a_record_batch_and_an_empty_table(encode: Encode) -> None:
    table = pa.table({"value": ["a", "b"]})
    assert len(encode(table.to_batches()[0]).records) == 2
    assert encode(table.slice(0, 0)).chunks == 0


def test_chunks_bound_what_is_made_at_once(encode: Encode) -> None:
    table = pa.table({"value": ["x" * 1000] * 1000})
    result = encode(table, chunk_bytes=100_000)
    assert 10 <= result.chunks <= 12


def test_wrong_columns_are_refused_before_anything_is_encoded() -> None:
    encoder = Encoder(
        partitioner=Partitioner(1, lambda _: 0), batch_bytes_max=1000, record_bytes_max=1000
    )
    with pytest.raises(EncodeError, match="'value' has type int64"):
        encoder.encode(pa.table({"value": [1]}), topic="t", partition_counts={"t": 1}, now_ms=0)


@pytest.mark.parametrize("size", [HEADER_BYTES, 1 << 31])
def test_impossible_limits_are_refused(size: int) -> None:
    with pytest.raises(EncodeError, match="batch_bytes_max"):
        Encoder(
            partitioner=Partitioner(1, lambda _: 0), batch_bytes_max=size, record_bytes_max=1000
        )
