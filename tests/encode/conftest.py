"""A foreign reader for what the encoder writes, and encoders with everything set."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from kafka.record.default_records import DefaultRecordBatch

from sparkonce.encode import Codec, EncodedBatch, Encoder, Partitioner, Rejected, seal

NOW_MS = 1_700_000_000_123


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read, with the row that it was made of."""

    row: int
    topic: str
    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Result:
    chunks: int
    batches: list[EncodedBatch]
    rejected: list[Rejected]
    records: list[Record]  # in the order of the batches


def read_batch(batch: EncodedBatch) -> list[Record]:
    """Reads a batch with kafka-python, which also checks that each record is as long as it says."""
    header = seal(batch, producer_id=7, epoch=3, sequence=11, transactional=True)
    foreign = DefaultRecordBatch(header + bytes(batch.records))
    assert foreign.validate_crc()
    assert foreign.size_in_bytes == batch.size_bytes
    assert (foreign.magic, foreign.base_offset, foreign.leader_epoch) == (2, 0, -1)
    assert (foreign.producer_id, foreign.producer_epoch, foreign.base_sequence) == (7, 3, 11)
    assert foreign.is_transactional and not foreign.is_control_batch
    assert foreign.compression_type == batch.codec
    assert foreign.records_count == batch.count == len(batch.rows)
    assert foreign.last_offset_delta == batch.count - 1
    records = list(foreign)
    assert [record.offset for record in records] == list(range(batch.count))
    assert max(record.timestamp for record in records) == foreign.max_timestamp
    return [
        Record(
            int(row), batch.topic, batch.partition, record.timestamp, record.key, record.value,
            record.headers,
        )
        for row, record in zip(batch.rows, records, strict=True)
    ]  # fmt: skip


@pytest.fixture(scope="session")
def encode() -> Callable[..., Result]:
    """Encodes a table and reads everything back."""

    def run(
        table: pa.Table | pa.RecordBatch,
        *,
        topic: str | None = "t",
        counts: dict[str, int] | None = None,
        existing: dict[str, int] | None = None,
        limits: dict[str, int] | None = None,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        batch_bytes_max: int = 1_000_000,
        record_bytes_max: int = 1_000_000,
        sticky_bytes: int = 16_384,
        **more: Any,
    ) -> Result:
        turn = itertools.count()
        encoder = Encoder(
            codec=codec,
            compression_level=level,
            partitioner=Partitioner(sticky_bytes, lambda count: next(turn) % count),
            batch_bytes_max=batch_bytes_max,
            record_bytes_max=record_bytes_max,
            **more,
        )
        made = list(
            encoder.encode(
                table,
                topic=topic,
                partition_counts=counts or {"t": 4},
                existing_counts=existing,
                batch_limits=limits or {},
                now_ms=NOW_MS,
            )
        )
        batches = [batch for chunk, _ in made for batch in chunk]
        records = [record for batch in batches for record in read_batch(batch)]
        return Result(len(made), batches, [row for _, rows in made for row in rows], records)

    return run


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)
