"""A record batch ready to be numbered, and its header once the numbers are known.

Between encoding and sending lies the transaction: only the sender knows producer id, epoch and
sequence. So the bulk of a batch is made first, and `seal` adds the 61 bytes that depend on them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from sparkonce.encode.compress import Codec

# base offset, length, leader epoch, magic, CRC
_UNCHECKED = struct.Struct(">qiibI")
# attributes, last offset delta, base and max timestamp, producer id, epoch, sequence, count
_CHECKED = struct.Struct(">hiqqqhii")
_AFTER_LENGTH_BYTES = _UNCHECKED.size - 12 + _CHECKED.size
_MAGIC = 2
_TRANSACTIONAL = 0x10
_NO_LEADER_EPOCH = -1

HEADER_BYTES = _UNCHECKED.size + _CHECKED.size


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records of one partition, compressed, not numbered yet; `rows` says which rows they are."""

    topic: str
    partition: int
    count: int
    codec: Codec
    base_timestamp_ms: int
    max_timestamp_ms: int
    records: memoryview
    rows: npt.NDArray[np.int64] | range

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + len(self.records)


def seal(
    batch: EncodedBatch, *, producer_id: int, epoch: int, sequence: int, transactional: bool
) -> bytes:
    """The header to be sent before `batch.records`; -1, -1, -1 for a producer without an id."""
    checked = _CHECKED.pack(
        batch.codec | (_TRANSACTIONAL if transactional else 0),
        batch.count - 1,
        batch.base_timestamp_ms,
        batch.max_timestamp_ms,
        producer_id,
        epoch,
        sequence,
        batch.count,
    )
    checksum = crc32c(batch.records, crc32c(checked))
    length = _AFTER_LENGTH_BYTES + len(batch.records)
    return _UNCHECKED.pack(0, length, _NO_LEADER_EPOCH, _MAGIC, checksum) + checked
