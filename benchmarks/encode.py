"""How fast Arrow columns become sealed record batches on one core.

    taskset -c 1 python benchmarks/encode.py [--mib 64] [--rounds 7] [--chunk-mib 8]

Each line is the best and the median of the rounds: encoding, cutting, compression, CRC-32C.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparkonce.encode import Codec, Encoder, Partitioner, seal

_BATCH_BYTES_MAX = 1_048_588
_PARTITIONS = 16
_NOW_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    value_bytes: int
    key_bytes: int = 0
    ragged: bool = False
    timestamps: bool = False
    codec: Codec = Codec.NONE


SHAPES = (
    Shape("100 B keyless", 100),
    Shape("100 B, 16 B key", 100, 16),
    Shape("1 KB keyless", 1000),
    Shape("1 KB, 16 B key", 1000, 16),
    Shape("100 B ragged, keyless, times", 100, ragged=True, timestamps=True),
    Shape("100 B ragged, ragged key, times", 100, 16, ragged=True, timestamps=True),
    Shape("1 KB ragged, ragged key, times", 1000, 16, ragged=True, timestamps=True),
    Shape("1 KB, 16 B key, lz4", 1000, 16, codec=Codec.LZ4),
    Shape("1 KB, 16 B key, zstd", 1000, 16, codec=Codec.ZSTD),
    Shape("1 KB, 16 B key, snappy", 1000, 16, codec=Codec.SNAPPY),
)


def column(rng: np.random.Generator, count: int, size: int, ragged: bool) -> pa.Array:
    sizes = rng.integers(size // 2, size * 3 // 2, count) if ragged else np.full(count, size)
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    content = rng.integers(97, 97 + 16, int(offsets[-1]), dtype=np.uint8)  # four bits a byte
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def table(shape: Shape, total_bytes: int) -> pa.Table:
    rng = np.random.default_rng(20)
    count = total_bytes // (shape.value_bytes + shape.key_bytes)
    columns = {"value": column(rng, count, shape.value_bytes, shape.ragged)}
    if shape.key_bytes:
        columns["key"] = column(rng, count, shape.key_bytes, shape.ragged)
    if shape.timestamps:
        times = _NOW_MS + np.arange(count) // 10
        columns["timestamp"] = pa.array(times).cast(pa.timestamp("ms", "UTC"))
    return pa.table(columns)


def run(shape: Shape, rows: pa.Table, chunk_bytes: int) -> tuple[float, int, int]:
    """Seconds taken, batches made, bytes made."""
    turn = itertools.count()
    encoder = Encoder(
        codec=shape.codec,
        partitioner=Partitioner(_BATCH_BYTES_MAX, lambda partitions: next(turn) % partitions),
        batch_bytes_max=_BATCH_BYTES_MAX,
        record_bytes_max=_BATCH_BYTES_MAX,
        chunk_bytes=chunk_bytes,
    )
    made_batches = made_bytes = 0
    start = time.perf_counter()
    for batches, _ in encoder.encode(
        rows, topic="t", partition_counts={"t": _PARTITIONS}, now_ms=_NOW_MS
    ):
        for batch in batches:
            seal(batch, producer_id=1, epoch=0, sequence=0, transactional=True)
            made_batches += 1
            made_bytes += batch.size_bytes
    return time.perf_counter() - start, made_batches, made_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="input per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--chunk-mib", type=float, default=8)
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    options = parser.parse_args()
    print(f"{'shape':34}{'GB/s':>8}{'median':>8}{'M rec/s':>9}{'median':>8}{'KB/batch':>10}")
    for shape in SHAPES:
        if options.only not in shape.name:
            continue
        rows = table(shape, options.mib << 20)
        content = sum(rows[name].nbytes - 4 * len(rows) for name in ("key", "value")
                      if name in rows.column_names)  # fmt: skip
        rounds = [run(shape, rows, int(options.chunk_mib * (1 << 20)))
                  for _ in range(options.rounds)]  # fmt: skip
        best = min(seconds for seconds, _, _ in rounds)
        middle = statistics.median(seconds for seconds, _, _ in rounds)
        _, batches, made_bytes = rounds[0]
        print(
            f"{shape.name:34}{content / best / 1e9:8.2f}{content / middle / 1e9:8.2f}"
            f"{len(rows) / best / 1e6:9.2f}{len(rows) / middle / 1e6:8.2f}"
            f"{made_bytes / batches / 1e3:10.0f}"
        )


if __name__ == "__main__":
    main()
