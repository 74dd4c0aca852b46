"""On executors: rows as Parquet files of the task, such as can become the table's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sparkonce.deliver.delta.files import DataFiles


@dataclass(frozen=True, slots=True)
class DeltaStage:
    folder: str
    partitioned_by: tuple[str, ...] = ()
    """Columns of which each file has one value; it is not in the file itself."""

    def __call__(self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
        folder = Path(self.folder, str(task))
        with DataFiles(folder, schema, self.partitioned_by) as files:
            for batch in batches:
                files.write(batch)
        return str(folder)
