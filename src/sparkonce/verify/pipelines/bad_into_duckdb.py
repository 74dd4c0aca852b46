"""Kafka to Spark to DuckDB, with rows that the table refuses."""

from __future__ import annotations

from pathlib import Path

import duckdb

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import bad_rows, into_duckdb, on_spark

NAME = "bad rows into DuckDB"
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
ORDERED = False
HOLDS = into_duckdb.HOLDS
units = on_spark.units
progress = into_duckdb.progress


def run(job: Job) -> None:
    if not Path(into_duckdb.path(job)).exists():
        _make_table(job)
    place = into_duckdb.options(job) | {"deadLetterTable": bad_rows.DEAD_LETTERS}
    on_spark.write_to("duckdb", bad_rows.rows(job), job, **bad_rows.WRITING, **place)


def collect(job: Job) -> list[Record]:
    kept = into_duckdb.ask(job, "SELECT text, value FROM output")
    dead = into_duckdb.ask(job, f'SELECT "row" FROM {bad_rows.DEAD_LETTERS}')
    return bad_rows.records(kept, (row for (row,) in dead))


def _make_table(job: Job) -> None:
    columns = (
        bad_rows.COLUMNS.format(text="varchar"),
        bad_rows.NOT_NEGATIVE,
        bad_rows.TAKES_TEXT,
    )
    with duckdb.connect(into_duckdb.path(job)) as connection:
        connection.execute(f"CREATE TABLE IF NOT EXISTS output ({', '.join(columns)})")
