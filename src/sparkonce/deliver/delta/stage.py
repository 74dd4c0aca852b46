"""On executors: rows as one Parquet file of the task, such as can become the table's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_NAN: Final = "sparkonce.nan"


@dataclass(frozen=True, slots=True)
class DeltaStage:
    folder: str

    def __call__(self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
        path = Path(self.folder, f"{task}.parquet")
        floats = [field.name for field in schema if pa.types.is_floating(field.type)]
        with_nan: set[str] = set()
        # Arrow's schema would keep the session's time zone: to Delta a timestamp has none.
        with pq.ParquetWriter(path, schema, compression="snappy", store_schema=False) as writer:
            for batch in batches:
                writer.write_batch(batch)
                with_nan.update(name for name in floats if pc.any(pc.is_nan(batch[name])).as_py())
            if with_nan:
                writer.add_key_value_metadata({_NAN: json.dumps(sorted(with_nan))})
        return str(path)


def columns_with_nan(metadata: Mapping[bytes, bytes] | None) -> frozenset[str]:
    """Parquet's statistics pass over a NaN, and to Spark it is greater than all others."""
    return frozenset(json.loads((metadata or {}).get(_NAN.encode(), b"[]")))
