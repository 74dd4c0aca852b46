"""What benchmarks of whole pipelines share: how each side reads, our reports, and a ceiling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import sparkonce
from sparkonce.stream.handover import Handover
from sparkonce.stream.report import BatchReport


def reader(spark: SparkSession, *, as_spark_comes: bool) -> DataStreamReader:
    """Of Kafka, as the documentation of each side shows it."""
    return spark.readStream.format("kafka") if as_spark_comes else sparkonce.read_stream(spark)


@dataclass(frozen=True, slots=True)
class Reports:
    """Where the time of sparkonce's batches went."""

    all: list[BatchReport] = field(default_factory=list)

    def on_batch(self, report: BatchReport) -> None:
        self.all.append(report)


def handing_over(row_bytes: int) -> Callable[[DataFrame], None]:
    """Rows to Python as sparkonce has it done, as many at once, and there they end."""
    handover = Handover()
    handover.learn(1, row_bytes)

    # In here, because executors have no such module and are sent the function itself.
    def drop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        return iter(())

    def hand_over(batch: DataFrame) -> None:
        with handover.in_force(batch.sparkSession):
            batch.mapInArrow(drop, "none int").collect()

    return hand_over
