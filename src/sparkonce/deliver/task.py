"""What runs on executors: rows in, rows staged, one line of figures back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructType

from sparkonce.deliver.store import Stage
from sparkonce.stream.steps import Observer

# Not as text, which the JVM would have to parse for every batch.
FIGURES = (
    StructType()
    .add("task", LongType())
    .add("name", StringType())
    .add("records", LongType())
    .add("size_bytes", LongType())
)


@dataclass(frozen=True, slots=True)
class StageTask:
    """Given to mapInArrow."""

    stage: Stage
    observe: Observer | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        task = context.taskAttemptId() if context else 0
        rows = _Counted(first, batches, self.observe)
        name = self.stage(task, first.schema, iter(rows))
        if self.observe:
            self.observe("produce:last")
        yield pa.RecordBatch.from_pydict(
            {
                "task": pa.array([task], pa.int64()),
                "name": [name],
                "records": pa.array([rows.records], pa.int64()),
                "size_bytes": pa.array([rows.size_bytes], pa.int64()),
            }
        )


class _Counted:
    """Batches on their way, counted."""

    def __init__(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], observe: Observer | None
    ) -> None:
        self._first = first
        self._rest = rest
        self._observe = observe
        self.records = 0
        self.size_bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield self._count(self._first)
        if self._observe:
            self._observe("produce:first")
        for batch in self._rest:
            yield self._count(batch)

    def _count(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.records += batch.num_rows
        self.size_bytes += batch.nbytes
        return batch
