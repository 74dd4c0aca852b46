"""Where the rows of a chunk go, and where their batches begin.

Rows of a partition must lie side by side to become a batch. Keyless rows come in long runs and
stay where they are; rows spread by their keys are sorted by partition, stably, so that the order
within a partition stays the order of the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparkonce.encode.chunk import NO_PARTITION, Chunk
from sparkonce.encode.partition import Partitioner
from sparkonce.encode.records import Sizes
from sparkonce.encode.varint import Ints

_RUN_BYTES_MIN = 32 * 1024  # runs of this mean length are good batches as they are


@dataclass(frozen=True, slots=True)
class Places:
    """The order to bring the rows into (None: as they are), and the runs that result."""

    order: Ints | None
    starts: Ints
    targets: list[tuple[str, int]]  # topic and partition of each run


def place(
    chunk: Chunk,
    sizes: Sizes,
    partition_counts: Mapping[str, int],
    nameable_counts: Mapping[str, int],
    partitioner: Partitioner,
) -> Places:
    """Partitions are chosen among the first counts; rows may name some beyond, of the second."""
    counts = np.array([partition_counts.get(topic) or 0 for topic in chunk.topics])
    nameable = [nameable_counts.get(topic) or 0 for topic in chunk.topics]
    first_codes = np.append(0, np.cumsum(nameable))
    partitions = _partitions(chunk, sizes, counts, partitioner)
    # numbers the partitions of all topics; small ones, for which NumPy has a radix sort
    codes = (first_codes[chunk.topic_index] + partitions).astype(
        np.min_scalar_type(int(first_codes[-1]))
    )
    order = None
    starts = _run_starts(codes)
    if len(starts) > 1 and int(sizes.at_most.sum()) < len(starts) * _RUN_BYTES_MIN:
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        starts = _run_starts(codes)
    targets = []
    for code in codes[starts].tolist():
        topic = int(np.searchsorted(first_codes, code, side="right")) - 1
        targets.append((chunk.topics[topic], code - int(first_codes[topic])))
    return Places(order, starts, targets)


def cut(sizes_bytes: Ints, start: int, end: int, room_bytes: int) -> list[int]:
    """Where batches begin so that the records of each fit into the room, or it has just one."""
    ends = np.cumsum(sizes_bytes[start:end])
    starts, at, before = [], 0, 0
    while at < len(ends):
        starts.append(start + at)
        fitting = int(np.searchsorted(ends, before + room_bytes, side="right"))
        at = max(fitting, at + 1)
        before = int(ends[at - 1])
    return starts


def _run_starts(codes: Ints) -> Ints:
    return np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1)


def _partitions(chunk: Chunk, sizes: Sizes, counts: Ints, partitioner: Partitioner) -> Ints:
    demanded = chunk.partitions
    free = np.ones(len(chunk), dtype=bool) if demanded is None else demanded == NO_PARTITION
    if demanded is not None and not free.any():
        return demanded
    partitions = np.zeros(len(chunk), dtype=np.int64)
    if chunk.key is not None:
        partitions = partitioner.keyed(chunk.key, counts[chunk.topic_index])
    if demanded is not None:
        partitions = np.where(free, partitions, demanded)
    if chunk.key is None or chunk.key.null_count:
        keyless = free if chunk.key is None else free & np.asarray(chunk.key.is_null())
        for index, topic in enumerate(chunk.topics):
            rows = np.flatnonzero(keyless & (chunk.topic_index == index))
            if len(rows):
                sticky = partitioner.keyless(topic, sizes.at_most[rows], int(counts[index]))
                partitions[rows] = sticky
    return partitions
