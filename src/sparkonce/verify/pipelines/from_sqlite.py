"""A table of SQLite into one of DuckDB."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from sparkonce.verify.contract import Job, Row
from sparkonce.verify.pipelines import from_table, into_duckdb, on_spark

NAME = "from SQLite"
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
ORDERED = False
HOLDS = into_duckdb.HOLDS
collect = into_duckdb.collect


def provide(job: Job, rows: Sequence[Row]) -> None:
    with closing(sqlite3.connect(_path(job))) as connection:
        connection.execute("CREATE TABLE input (id integer PRIMARY KEY, key text, value text)")
        connection.executemany(
            "INSERT INTO input VALUES (?, ?, ?)",
            [(row.number, row.key, row.identity) for row in rows],
        )
        connection.commit()


def run(job: Job) -> None:
    rows = from_table.read_all(job, url=f"sqlite://{_path(job)}", dbtable="input")
    place = into_duckdb.options(job)
    on_spark.write_to("duckdb", rows.select("key", "value"), job, **place)


def _path(job: Job) -> str:
    return str(Path(job.place, "input.sqlite"))
