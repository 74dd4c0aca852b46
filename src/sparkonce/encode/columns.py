"""The columns a caller may give, by the names and types of Spark's Kafka sink; the way in.

Types are checked once, before anything is encoded. Whatever form Arrow has for bytes (strings,
large, views, dictionaries) comes out as plain binary, nulls kept; no values are copied for strings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.encode.varint import VALUE_END, Ints
from sparkonce.errors import EncodeError

types = pa.types

_ALLOWED = {
    "key": "binary or string",
    "value": "binary or string",
    "headers": "list<struct<key: string, value: binary>>",
    "timestamp": "timestamp, or int64 milliseconds since 1970",
    "topic": "string",
    "partition": "int32 (any integer type but uint64)",
    # Not part of a record: why a row is none, and where it came from.
    "dead_letter": "string",
    "source": "struct<topic: string, partition: int32, offset: int64>",
}
SOURCE_FIELDS = ["topic", "partition", "offset"]
_MS_PER_UNIT = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Refuses columns that are unknown, missing, doubled or of a wrong type."""
    for name in schema.names:
        if name not in _ALLOWED:
            raise EncodeError(
                f"column {name!r} has no place in a Kafka record; drop it, or put it into one of "
                f"the allowed columns: {', '.join(_ALLOWED)}"
            )
        if schema.names.count(name) > 1:
            raise EncodeError(f"there is more than one column {name!r}; keep one of them")
    if "value" not in schema.names:
        raise EncodeError("there is no column 'value'; a Kafka record needs one (it may be null)")
    if topic is None and "topic" not in schema.names:
        raise EncodeError("there is neither a topic nor a column 'topic'; give one of the two")
    for field in schema:
        if not _is_allowed(field.name, field.type):
            raise EncodeError(
                f"column {field.name!r} has type {field.type}; it must be {_ALLOWED[field.name]}: "
                "cast it first"
            )


def topics_in(table: pa.Table | pa.RecordBatch, topic: str | None) -> list[str]:
    """The topics that rows go to, so that their metadata can be asked for beforehand."""
    if topic is not None:
        return [topic]
    check_columns(table.schema, topic)
    distinct = pc.unique(as_strings(pa.table({"topic": table["topic"]})["topic"]))
    return [name for name in distinct.to_pylist() if name is not None]


def highest_partitions(table: pa.Table | pa.RecordBatch, topic: str | None) -> dict[str, int]:
    """The highest partition that rows name of each topic; nothing of topics of which none do."""
    if "partition" not in table.schema.names:
        return {}
    whole = pa.table({"partition": table["partition"]})
    columns = whole.cast(pa.schema({"partition": pa.int64()}))  # Arrow has no maximum of nulls
    if topic is not None:
        highest = pc.max(columns["partition"]).as_py()
        return {} if highest is None else {topic: highest}
    names = as_strings(pa.table({"topic": table["topic"]})["topic"])
    grouped = columns.append_column("topic", names).group_by("topic")
    found = grouped.aggregate([("partition", "max")]).select(["topic", "partition_max"])
    pairs = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return {name: highest for name, highest in pairs if name is not None and highest is not None}


def as_binary(column: pa.ChunkedArray) -> Any:
    """One Arrow array of bytes, whatever the column's form was."""
    plain = types.is_large_binary(column.type) or types.is_large_string(column.type)
    return _in_one(column.cast(pa.large_binary() if plain else pa.binary()))


def as_strings(column: pa.ChunkedArray) -> Any:
    return _in_one(column.cast(pa.string()))


def lengths(column: pa.ChunkedArray) -> Ints:
    """The length of each value in bytes, -1 for null, without making the values."""
    return np.concatenate([np.empty(0, np.int64), *map(array_lengths, column.chunks)])


def array_lengths(array: Any) -> Ints:
    if types.is_null(array.type):
        return np.full(len(array), -1, dtype=np.int64)
    if types.is_dictionary(array.type):
        by_index = np.append(array_lengths(array.dictionary), -1)
        return by_index[filled(array.indices, len(by_index) - 1)]
    if types.is_binary_view(array.type) or types.is_string_view(array.type):
        views = np.frombuffer(array.buffers()[1], dtype=np.int32).reshape(-1, 4)
        inside = views[array.offset : array.offset + len(array), 0].astype(np.int64)
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), inside, -1)
    return filled(pc.binary_length(array), -1)


def timestamps_ms(column: pa.ChunkedArray, now_ms: int) -> Ints:
    """Milliseconds since 1970; what is out of range stays out of range, whatever the unit."""
    times, per = 1, 1
    if types.is_timestamp(column.type):
        times, per = _MS_PER_UNIT[column.type.unit]
        column = column.cast(pa.int64())
    array = _in_one(column.cast(pa.int64()))
    end = VALUE_END // times + 1
    values = filled(array, 0)
    scaled = values // per if times == 1 else np.clip(values, -1, end) * times
    if array.null_count:
        scaled = np.where(array.is_valid().to_numpy(zero_copy_only=False), scaled, now_ms)
    return scaled


def integers(column: pa.ChunkedArray, null_as: int) -> Ints:
    return filled(_in_one(column.cast(pa.int64())), null_as)


def filled(array: Any, null_as: int) -> Ints:
    numbers = pc.fill_null(array, null_as) if array.null_count else array
    values: Ints = numbers.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def _in_one(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_allowed(name: str, kind: pa.DataType) -> bool:
    if types.is_null(kind):
        return True
    if name in ("key", "value"):
        return _is_bytes(kind)
    if name in ("topic", "dead_letter"):
        return _is_text(kind)
    if name == "source":
        return _is_source(kind)
    if name == "timestamp":
        return bool(types.is_timestamp(kind) or types.is_int64(kind))
    if name == "partition":
        return bool(types.is_integer(kind) and not types.is_uint64(kind))
    return _is_headers(kind)


def _is_text(kind: pa.DataType) -> bool:
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    if types.is_dictionary(kind):
        return _is_bytes(kind.value_type)
    return _is_text(kind) or bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    )


def _is_source(kind: pa.DataType) -> bool:
    if not types.is_struct(kind) or [field.name for field in kind] != SOURCE_FIELDS:
        return False
    topic, partition, offset = (field.type for field in kind)
    return _is_text(topic) and bool(types.is_integer(partition) and types.is_integer(offset))


def _is_headers(kind: pa.DataType) -> bool:
    if not (types.is_list(kind) or types.is_large_list(kind)):
        return False
    header = kind.value_type
    if not types.is_struct(header) or sorted(field.name for field in header) != ["key", "value"]:
        return False
    key, value = header.field("key").type, header.field("value").type
    return _is_text(key) and (_is_bytes(value) or bool(types.is_null(value)))
