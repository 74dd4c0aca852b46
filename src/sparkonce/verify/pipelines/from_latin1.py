"""A table of a PostgreSQL that is not in UTF-8, into one of a database that is."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from pyspark.sql import functions as F  # noqa: N812

from sparkonce.verify.contract import Job, Record, Row
from sparkonce.verify.pipelines import from_table, into_postgres, into_tables, latin1, on_spark

NAME = "from LATIN1"
POINTS = on_spark.ALL_POINTS
SERVICES = ("postgres",)
SPARK = True
SHARES = True
ORDERED = False


def provide(job: Job, rows: Sequence[Row]) -> None:
    into_postgres.beside(job, latin1.create)
    own = latin1.within(job)
    from_table.provide(own, rows)
    with psycopg.connect(own.services["postgres"]) as connection:
        connection.execute(
            f"UPDATE {from_table.table(job)} SET value = value || %s", [latin1.OTHER_TEXT]
        )


def run(job: Job) -> None:
    """As text and as its bytes: neither end can mend what the other one has altered."""
    value = F.col("value")
    rows = from_table.read(latin1.within(job)).select(
        "key", "value", F.hex(F.encode(value, "UTF-8")).alias("utf8")
    )
    on_spark.write_to("postgres", rows, job, **into_postgres.options(job))


def collect(job: Job) -> list[Record]:
    found = into_postgres.ask(job, f"SELECT value, utf8 FROM {into_postgres.table(job)}")
    return into_tables.records(_identity(value, utf8) for value, utf8 in found)


def _identity(value: str, utf8: str) -> str:
    """Where the text is not what it was, nothing that the checker knows."""
    is_whole = value.endswith(latin1.OTHER_TEXT) and bytes.fromhex(utf8).decode() == value
    return value.removesuffix(latin1.OTHER_TEXT) if is_whole else f"altered: {value} {utf8}"
