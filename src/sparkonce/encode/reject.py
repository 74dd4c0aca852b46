"""Rows that can't become records, found before anything is made of their chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkonce.encode.batch import HEADER_BYTES
from sparkonce.encode.chunk import NO_PARTITION, NO_TOPIC, Chunk
from sparkonce.encode.records import Sizes
from sparkonce.encode.varint import VALUE_END, Ints

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that can't become a record, and why."""

    row: int
    topic: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a record may be; sizes are those of the batch that holds it alone."""

    record_bytes_max: int
    batch_limits: Mapping[str, int]
    compressed: bool  # a topic's limit is for the compressed batch: not known yet

    def check_compressed(self, topic: str, size_bytes: int) -> str | None:
        """Why a lone record that has been compressed is too large for its topic."""
        limit = self.batch_limits.get(topic)
        return None if limit is None or size_bytes <= limit else _over_topic(size_bytes, limit)


def find_rejected(
    chunk: Chunk, sizes: Sizes, partition_counts: Mapping[str, int], limits: Limits
) -> list[Rejected]:
    """The chunk's unfit rows in their order, each with the first reason that applies."""
    # one more element stands for rows without a topic (index -1)
    counts = np.array([partition_counts.get(topic) or 0 for topic in chunk.topics] + [0])
    row_counts = counts[chunk.topic_index]
    alone = sizes.alone + HEADER_BYTES
    rejected: dict[int, Rejected] = {}

    def reject(unfit: Mask, reason: Callable[[int], str]) -> None:
        for at in np.flatnonzero(np.broadcast_to(unfit, len(chunk))).tolist():
            row = int(chunk.rows[at])
            rejected.setdefault(at, Rejected(row, _topic_of(chunk, at), reason(at)))

    if chunk.marks is not None:
        reject(np.asarray(chunk.marks.is_valid()), lambda at: str(chunk.marks[at].as_py()))
    reject(chunk.topic_index == NO_TOPIC, lambda _: "no topic: the column 'topic' is null here")
    reject(row_counts == 0, lambda at: f"topic {_topic_of(chunk, at)!r} is unknown, or has no "
           "partitions: create it, or correct the name")  # fmt: skip
    if chunk.partitions is not None:
        demanded = chunk.partitions
        outside = (demanded != NO_PARTITION) & ((demanded < 0) | (demanded >= row_counts))
        reject(outside, lambda at: f"partition {demanded[at]} is out of range: topic "
               f"{_topic_of(chunk, at)!r} has {_at(row_counts, at)} partitions")  # fmt: skip
    reject((chunk.timestamps_ms < 0) | (chunk.timestamps_ms >= VALUE_END),
           lambda _: "timestamp out of range: Kafka has none before 1970")  # fmt: skip
    if chunk.tail is not None and chunk.tail.null_count:
        broken = np.asarray(chunk.tail.is_null())
        reject(broken, lambda _: "a header without a key: Kafka needs one for each")
    reject(alone > limits.record_bytes_max,
           lambda at: _over(int(alone[at]), limits.record_bytes_max, "record_bytes_max "
                            "(Kafka's max.request.size)"))  # fmt: skip
    if limits.batch_limits and not limits.compressed:
        no_limit = np.iinfo(np.int64).max
        allowed = np.array([limits.batch_limits.get(t, no_limit) for t in chunk.topics] + [0])
        row_limits = allowed[chunk.topic_index]
        reject(alone > row_limits, lambda at: _over_topic(int(alone[at]), _at(row_limits, at)))
    return [rejected[at] for at in sorted(rejected)]


def _topic_of(chunk: Chunk, at: int) -> str | None:
    index = _at(chunk.topic_index, at)
    return None if index == NO_TOPIC else chunk.topics[index]


def _at(values: Ints, at: int) -> int:
    return int(values[at] if len(values) > 1 else values[0])


def _over_topic(size_bytes: int, limit_bytes: int) -> str:
    return _over(size_bytes, limit_bytes, "the topic's max.message.bytes")


def _over(size_bytes: int, limit_bytes: int, setting: str) -> str:
    return (
        f"too large: alone in its batch it takes {size_bytes} bytes, over the {limit_bytes} "
        f"that {setting} allows; raise that, or make the record smaller"
    )
