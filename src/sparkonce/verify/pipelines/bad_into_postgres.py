"""Kafka to Spark to PostgreSQL, in a database that is not in UTF-8, with rows that it refuses."""

from __future__ import annotations

from collections.abc import Mapping

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import bad_rows, into_postgres, latin1, on_spark

NAME = "bad rows into PostgreSQL"
POINTS = on_spark.ALL_POINTS
SERVICES = ("postgres",)
SPARK = True
SHARES = True
ORDERED = False
units = on_spark.units


def run(job: Job) -> None:
    into_postgres.beside(job, latin1.create)
    own = latin1.within(job)
    columns = f"{bad_rows.COLUMNS.format(text='text')}, {bad_rows.NOT_NEGATIVE}"
    created = f"CREATE TABLE IF NOT EXISTS {into_postgres.table(job)} ({columns})"
    into_postgres.beside(own, lambda connection: connection.execute(created))
    place = into_postgres.options(own) | {"deadLetterTable": _dead_letters(job)}
    on_spark.write_to("postgres", bad_rows.rows(job), job, **bad_rows.WRITING, **place)


def collect(job: Job) -> list[Record]:
    own = latin1.within(job)
    kept = into_postgres.ask(own, f"SELECT text, value FROM {into_postgres.table(job)}")
    dead = into_postgres.ask(own, f'SELECT "row" FROM {_dead_letters(job)}')
    return bad_rows.records(kept, (row for (row,) in dead))


def progress(job: Job) -> Mapping[int, int]:
    return into_postgres.progress(latin1.within(job))


def _dead_letters(job: Job) -> str:
    return f"{into_postgres.table(job)}_{bad_rows.DEAD_LETTERS}"
