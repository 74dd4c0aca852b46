"""Kafka to Spark to PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import into_tables, on_spark

NAME = "into PostgreSQL"
GUARANTEES = into_tables.GUARANTEES
POINTS = on_spark.ALL_POINTS
SERVICES = ("postgres",)
SPARK = True
SHARES = True
ORDERED = False
units = on_spark.units

_PATIENCE_S: Final = 60.0


def run(job: Job) -> None:
    on_spark.write_to("postgres", into_tables.rows(job), job, **options(job))


def options(job: Job) -> dict[str, str]:
    """Where rows go: a table of the trial's own."""
    return {
        "url": job.services["postgres"],
        "dbtable": table(job),
        "createTable": "true",
        "pipeline": job.name,
    }


def collect(job: Job) -> list[Record]:
    return into_tables.records(value for (value,) in ask(job, f"SELECT value FROM {table(job)}"))


def progress(job: Job) -> Mapping[int, int]:
    found = ask(job, "SELECT sources FROM sparkonce_ledger WHERE pipeline = %s", job.name)
    return into_tables.offsets(found[0][0] if found else None, job)


def ask(job: Job, question: str, *values: str) -> list[Any]:
    """By psycopg; nothing, where a life ended before the table was made."""
    with psycopg.connect(job.services["postgres"]) as connection:
        try:
            return connection.execute(question, values).fetchall()
        except psycopg.errors.UndefinedTable:
            return []


def beside(job: Job, action: Callable[[psycopg.Connection], object]) -> None:
    """What a pipeline has to do there itself: in one transaction, and again where the server was
    ended meanwhile, as ours are."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with psycopg.connect(job.services["postgres"]) as connection:
                action(connection)
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)  # between two questions to the server


def table(job: Job) -> str:
    return f"output_{job.name.replace('-', '_')}"
