"""The whole way from an Arrow table to record batches, chunk by chunk.

Each chunk is checked, its unfit rows are put aside, the others are placed, cut into batches that
can't outgrow their limit, made into bytes and compressed. Nothing here knows of the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from sparkonce.encode.batch import HEADER_BYTES, EncodedBatch
from sparkonce.encode.chunk import Chunk, chunks
from sparkonce.encode.columns import check_columns
from sparkonce.encode.compress import Codec, compressor
from sparkonce.encode.partition import Partitioner
from sparkonce.encode.place import Places, cut, place
from sparkonce.encode.records import Sizes, record_sections, record_sizes
from sparkonce.encode.reject import Limits, Rejected, find_rejected
from sparkonce.encode.varint import Ints
from sparkonce.errors import EncodeError

CHUNK_BYTES = 8 * 1024 * 1024
_RECORD_BYTES_END = 1 << 30  # Kafka counts bytes in signed 32-bit numbers, and so does Arrow

Encoded = tuple[list[EncodedBatch], list[Rejected]]


class Encoder:
    """Turns rows into batches; keeps nothing between calls but the partitioner's state."""

    def __init__(
        self,
        *,
        codec: Codec = Codec.NONE,
        compression_level: int | None = None,
        partitioner: Partitioner,
        batch_bytes_max: int,
        record_bytes_max: int,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        for name, size in (("batch_bytes_max", batch_bytes_max),
                           ("record_bytes_max", record_bytes_max)):  # fmt: skip
            if not HEADER_BYTES < size <= _RECORD_BYTES_END:
                raise EncodeError(
                    f"{name} is {size}; set it to more than the {HEADER_BYTES} bytes of a batch's "
                    f"header and at most {_RECORD_BYTES_END}"
                )
        self._codec = codec
        self._compress = compressor(codec, compression_level)
        self._partitioner = partitioner
        self._batch_bytes_max = batch_bytes_max
        self._record_bytes_max = record_bytes_max
        self._chunk_bytes = chunk_bytes

    def encode(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        topic: str | None,
        partition_counts: Mapping[str, int],
        existing_counts: Mapping[str, int] | None = None,
        batch_limits: Mapping[str, int] | None = None,
        now_ms: int,
    ) -> Iterator[Encoded]:
        """Batches and rejected rows, one item per chunk; the columns are checked at once.

        Partitions are chosen among `partition_counts`, on which those who write side by side may
        have agreed. A row may name any that exists: of a topic that has grown since,
        `existing_counts` has more.
        `batch_limits` has the topics whose max.message.bytes is known and binds here.
        """
        check_columns(table.schema, topic)
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        limits = Limits(self._record_bytes_max, batch_limits or {}, self._codec is not Codec.NONE)
        pieces = chunks(table, topic=topic, now_ms=now_ms, chunk_bytes=self._chunk_bytes)
        existing = existing_counts or {}
        nameable_counts = {
            name: max(count, existing.get(name, 0)) for name, count in partition_counts.items()
        }
        return (
            self._encode_chunk(piece, partition_counts, nameable_counts, limits) for piece in pieces
        )

    def _encode_chunk(
        self,
        chunk: Chunk,
        partition_counts: Mapping[str, int],
        nameable_counts: Mapping[str, int],
        limits: Limits,
    ) -> Encoded:
        sizes = record_sizes(chunk)
        rejected = find_rejected(chunk, sizes, nameable_counts, limits)
        if rejected:
            unfit = np.array([row.row for row in rejected]) - chunk.rows[0]
            chunk = chunk.take(np.delete(np.arange(len(chunk)), unfit))
            sizes = record_sizes(chunk)
        if not len(chunk):
            return [], rejected
        places = place(chunk, sizes, partition_counts, nameable_counts, self._partitioner)
        if places.order is not None:
            chunk = chunk.take(places.order)
            sizes = Sizes(sizes.alone, sizes.at_most[places.order])
        batches = []
        for batch in self._batches(chunk, sizes, places, limits):
            reason = limits.check_compressed(batch.topic, batch.size_bytes)
            if reason is None:
                batches.append(batch)
            else:
                rejected.append(Rejected(int(batch.rows[0]), batch.topic, reason))
        return batches, sorted(rejected, key=lambda row: row.row)

    def _batches(
        self, chunk: Chunk, sizes: Sizes, places: Places, limits: Limits
    ) -> Iterator[EncodedBatch]:
        starts: list[int] = []
        targets: list[tuple[str, int]] = []
        run_ends = [*places.starts[1:].tolist(), len(chunk)]
        for start, end, target in zip(
            places.starts.tolist(), run_ends, places.targets, strict=True
        ):
            limit = limits.batch_limits.get(target[0], self._batch_bytes_max)
            room = min(limit, self._batch_bytes_max) - HEADER_BYTES
            run = cut(sizes.at_most, start, end, room)
            starts += run
            targets += [target] * len(run)
        edges = np.array(starts)
        sections = record_sections(chunk, edges)
        bases, largest = _timestamp_range(chunk, edges)
        for at, (section, (topic, partition)) in enumerate(zip(sections, targets, strict=True)):
            rows = chunk.rows[starts[at] : starts[at + 1] if at + 1 < len(starts) else len(chunk)]
            codec, records = self._codec, self._compress(section)
            if len(records) >= len(section):
                # what compression would only make larger goes as it is: so batches cut by
                # their plain size always fit
                codec, records = Codec.NONE, section
            yield EncodedBatch(
                topic, partition, len(rows), codec, bases[at], largest[at], records, rows
            )


def _timestamp_range(chunk: Chunk, starts: Ints) -> tuple[list[int], list[int]]:
    times = chunk.timestamps_ms
    if len(times) == 1:
        same = [int(times[0])] * len(starts)
        return same, same
    return times[starts].tolist(), np.maximum.reduceat(times, starts).tolist()
