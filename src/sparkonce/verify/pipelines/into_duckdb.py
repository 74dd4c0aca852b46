"""Kafka to Spark to DuckDB."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import into_tables, on_spark

NAME = "into DuckDB"
GUARANTEES = into_tables.GUARANTEES
POINTS = on_spark.ALL_POINTS
SPARK = True
SHARES = True
ORDERED = False
HOLDS = ("offsets", "end")
"""The file is one process's at a time."""
units = on_spark.units

_PATIENCE_S = 30.0


def run(job: Job) -> None:
    on_spark.write_to("duckdb", into_tables.rows(job), job, **options(job))


def options(job: Job) -> dict[str, str]:
    """Where rows go: a file of the trial's own."""
    return {
        "path": path(job),
        "dbtable": "output",
        "createTable": "true",
        "pipeline": job.name,
    }


def collect(job: Job) -> list[Record]:
    return into_tables.records(value for (value,) in ask(job, "SELECT value FROM output"))


def progress(job: Job) -> Mapping[int, int]:
    found = ask(job, "SELECT sources FROM sparkonce_ledger")
    return into_tables.offsets(found[0][0] if found else None, job)


def ask(job: Job, question: str) -> list[Any]:
    """By DuckDB itself; nothing, where a life ended before the table was made."""
    if not Path(path(job)).exists():
        return []
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with duckdb.connect(path(job), read_only=True) as connection:
                return connection.execute(question).fetchall()
        except duckdb.CatalogException:
            return []
        except duckdb.IOException:
            # A process that was killed may have it for a moment longer.
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def path(job: Job) -> str:
    return str(Path(job.place, "output.duckdb"))
