"""A few megabytes of rows in plain form: what fits the processor's cache and bounds the memory.

Everything after this step works on one chunk at a time. A number that is the same for all rows
(the time of the call, the topic given as an argument) is held as an array of one element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkonce.encode.columns import (
    as_binary,
    as_strings,
    filled,
    integers,
    lengths,
    timestamps_ms,
)
from sparkonce.encode.headers import header_bytes, header_tails
from sparkonce.encode.varint import Ints

NO_PARTITION = np.iinfo(np.int64).min  # the row leaves the choice to the partitioner
NO_TOPIC = -1
_ROW_BYTES_MIN = 16  # so that rows without content count too


@dataclass(frozen=True, slots=True)
class Chunk:
    rows: npt.NDArray[np.int64] | range  # their numbers in the caller's table
    key: Any  # Arrow binary, or None where no row has a key
    value: Any  # Arrow binary
    tail: Any  # encoded headers as Arrow binary, null if broken; None where no row has any
    timestamps_ms: Ints
    topics: list[str]
    topic_index: Ints  # into `topics`, or NO_TOPIC
    partitions: Ints | None  # as the rows demand them, or NO_PARTITION
    marks: Any  # why the caller holds a row to be unfit, as Arrow strings; None where none is

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, order: Ints) -> Chunk:
        chosen = pa.array(order)
        return Chunk(
            rows=order + self.rows.start if isinstance(self.rows, range) else self.rows[order],
            key=None if self.key is None else self.key.take(chosen),
            value=self.value.take(chosen),
            tail=None if self.tail is None else self.tail.take(chosen),
            timestamps_ms=_pick(self.timestamps_ms, order),
            topics=self.topics,
            topic_index=_pick(self.topic_index, order),
            partitions=None if self.partitions is None else self.partitions[order],
            marks=None if self.marks is None else self.marks.take(chosen),
        )


def chunks(table: pa.Table, *, topic: str | None, now_ms: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Cuts the table into pieces of about `chunk_bytes` each, and of at least one row.

    Even ones: a small rest at the end would cost nearly as many steps as a whole chunk.
    """
    ends = np.cumsum(_row_bytes(table))
    if not len(ends):
        return
    total_bytes = int(ends[-1])
    pieces = max(1, round(total_bytes / chunk_bytes))
    limits = total_bytes * np.arange(1, pieces + 1) // pieces
    untils = np.unique(np.maximum(np.searchsorted(ends, limits, side="right"), 1))
    for at, until in pairwise([0, *untils.tolist()]):
        yield _chunk(table.slice(at, until - at), at, topic, now_ms)


def _row_bytes(table: pa.Table) -> Ints:
    sizes = np.full(table.num_rows, _ROW_BYTES_MIN, dtype=np.int64)
    for name in ("key", "value"):
        if name in table.column_names:
            sizes += lengths(table[name])
    if _has(table, "headers"):
        sizes += header_bytes(table["headers"])
    return sizes


def _chunk(piece: pa.Table, first: int, topic: str | None, now_ms: int) -> Chunk:
    topics, topic_index = _topics(piece, topic)
    key = as_binary(piece["key"]) if _has(piece, "key") else None
    return Chunk(
        rows=range(first, first + piece.num_rows),
        key=None if key is None or key.null_count == len(key) else key,
        value=as_binary(piece["value"]),
        tail=header_tails(piece["headers"]) if _has(piece, "headers") else None,
        timestamps_ms=_timestamps(piece, now_ms),
        topics=topics,
        topic_index=topic_index,
        partitions=integers(piece["partition"], NO_PARTITION) if _has(piece, "partition") else None,
        marks=_marks(piece),
    )


def _marks(piece: pa.Table) -> Any:
    if not _has(piece, "dead_letter") or piece["dead_letter"].null_count == piece.num_rows:
        return None
    return as_strings(piece["dead_letter"])


def _has(table: pa.Table, name: str) -> bool:
    return name in table.column_names and not pa.types.is_null(table.schema.field(name).type)


def _topics(piece: pa.Table, topic: str | None) -> tuple[list[str], Ints]:
    if topic is not None:  # as in Spark, the option wins over the column
        return [topic], np.zeros(1, dtype=np.int64)
    if not _has(piece, "topic"):
        return [], np.full(1, NO_TOPIC, dtype=np.int64)
    encoded = as_strings(piece["topic"]).dictionary_encode()
    return encoded.dictionary.to_pylist(), collapsed(filled(encoded.indices, NO_TOPIC))


def _timestamps(piece: pa.Table, now_ms: int) -> Ints:
    if not _has(piece, "timestamp"):
        return np.full(1, now_ms, dtype=np.int64)
    return collapsed(timestamps_ms(piece["timestamp"], now_ms))


def collapsed(values: Ints) -> Ints:
    """One element where all are the same: the steps that follow then cost nothing."""
    return values[:1] if len(values) and (values == values[0]).all() else values


def _pick(values: Ints, order: Ints) -> Ints:
    return values if len(values) == 1 else values[order]
