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
            f"CREATE TABLE {table(job)} (id bigint PRIMARY KEY, key text, value text)"
        )
        # One transaction for each half, so that there is more than one to be read.
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            insert(connection, table(job), part)


def insert(connection: psycopg.Connection, into: str, rows: Sequence[Row]) -> None:
    """In a transaction of their own."""
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {into} (id, key, value) VALUES (%s, %s, %s)",
            [(row.number, row.key, row.identity) for row in rows],
        )
    connection.commit()


def run(job: Job) -> None:
    on_spark.write(read(job), job, topic=job.output_topic)


def read(job: Job) -> DataFrame:
    return read_all(job, url=job.services["postgres"], dbtable=table(job)).select("key", "value")


def read_all(job: Job, **options: str) -> DataFrame:
    """All columns of a table with these keys, of whichever database."""
    return (
        on_spark.session(job)
        .readStream.format("sparkonce_table")
        .option("keyColumn", "id")
        .option("maxRowsPerBatch", job.per_batch)
        .options(**options)
        .load()
    )


def table(job: Job) -> str:
    return f"input_{job.name.replace('-', '_')}"
