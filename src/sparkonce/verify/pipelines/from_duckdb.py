"""A table of DuckDB into a Delta table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from sparkonce.verify.contract import Job, Row
from sparkonce.verify.pipelines import from_table, into_delta, on_spark

NAME = "from DuckDB"
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
ORDERED = False
collect = into_delta.collect


def provide(job: Job, rows: Sequence[Row]) -> None:
    with duckdb.connect(_path(job)) as connection:
        connection.execute("CREATE TABLE input (id bigint PRIMARY KEY, key text, value text)")
        connection.executemany(
            "INSERT INTO input VALUES (?, ?, ?)",
            [(row.number, row.key, row.identity) for row in rows],
        )


def run(job: Job) -> None:
    rows = from_table.read_all(job, url=f"duckdb://{_path(job)}", dbtable="input")
    place = {"path": str(into_delta.path(job)), "createTable": "true", "txnAppId": job.name}
    on_spark.write_to("delta", rows.select("key", "value"), job, **place)


def _path(job: Job) -> str:
    return str(Path(job.place, "input.duckdb"))
