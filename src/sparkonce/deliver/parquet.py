"""On executors: rows as one Parquet file of the task, in a folder that the driver reads too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True)
class ParquetStage:
    folder: str

    def __call__(self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
        path = Path(self.folder, f"{task}.parquet")
        # Read once and deleted: worth little compression and no dictionary.
        with pq.ParquetWriter(path, schema, compression="lz4", use_dictionary=False) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return str(path)
