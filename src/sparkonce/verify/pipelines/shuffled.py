"""Kafka to Spark to Kafka through two shuffles, and where rows go is another each time.

Between them rows lie by a place that is random, as if an outside service had been asked for it, or
as the order of arrival decides it. Spark takes it for a function of the row. So a part of the first
shuffle that is computed again, because its executor was lost, has other rows for each place: who
read the old part and who reads the new one have some rows twice, and others not at all.

Spark's own protection, from 4.1 on (`spark.sql.shuffle.orderIndependentChecksum`), is left out:
older versions have none, and it is ours that is to be seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from sparkonce.verify.contract import BEHIND_SHUFFLES, BETWEEN_SHUFFLES, SHUFFLED, Job
from sparkonce.verify.pipelines import on_spark

GUARANTEES = ("exactly_once",)
POINTS = (*on_spark.ALL_POINTS, SHUFFLED)
FAMILIES = ("executor",)
"""Without executors of its own it is the pipeline without state."""
SPARK = True
SHARES = True
BY_KEY = True
ORDERED = False
units = on_spark.units

_COLUMNS: Final = "key binary, value binary, place long"


def run(job: Job) -> None:
    spark = on_spark.session(job)
    for part in ("enabled", "enableFullRetryOnMismatch", "enableQueryLevelRollbackOnMismatch"):
        spark.conf.set(f"spark.sql.shuffle.orderIndependentChecksum.{part}", "false")
    rows = on_spark.read(spark, job).select("key", "value")

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = [*batches]
        job.observe(SHUFFLED)
        yield from read

    placed = rows.mapInArrow(_place, _COLUMNS).repartition(BETWEEN_SHUFFLES, "place")
    read = placed.mapInArrow(tell, _COLUMNS).repartition(BEHIND_SHUFFLES, "value")
    on_spark.write(read.select("key", "value"), job, topic=job.output_topic)


def _place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        places = [random.randrange(BETWEEN_SHUFFLES) for _ in range(batch.num_rows)]
        yield batch.append_column("place", pa.array(places, pa.int64()))
