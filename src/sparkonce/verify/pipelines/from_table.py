"""A table of PostgreSQL to Spark to Kafka, by its growing key."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from pyspark.sql import DataFrame

from sparkonce.verify.contract import Job, Row
from sparkonce.verify.pipelines import on_spark

NAME = "from a table"
GUARANTEES = on_spark.GUARANTEES
POINTS = on_spark.ALL_POINTS
SERVICES = ("postgres",)
SPARK = True
SHARES = True
ORDERED = False


def provide(job: Job, rows: Sequence[Row]) -> None:
    with psycopg.connect(job.services["postgres"]) as connection:
        connection.execute(
            f"CREATE TABLE {_table(job)} (id bigint PRIMARY KEY, key text, value text)"
        )
        # One transaction for each half, so that there is more than one to be read.
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            with connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {_table(job)} VALUES (%s, %s, %s)",
                    [(row.number, row.key, row.identity) for row in part],
                )
            connection.commit()


def run(job: Job) -> None:
    on_spark.write(read(job), job, topic=job.output_topic)


def read(job: Job) -> DataFrame:
    spark = on_spark.session(job)
    return (
        spark.readStream.format("sparkonce_table")
        .option("url", job.services["postgres"])
        .option("dbtable", _table(job))
        .option("keyColumn", "id")
        .option("maxRowsPerBatch", job.per_batch)
        .load()
        .select("key", "value")
    )


def _table(job: Job) -> str:
    return f"input_{job.name.replace('-', '_')}"
