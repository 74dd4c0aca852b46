"""Two pipelines to one table of PostgreSQL, each with half of the input.

In each batch either of them writes rows of its own, and upserts many that the other one upserts as
well, in the opposite order: they stand in each other's way and must not be in each other's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import psycopg
from pyspark.sql import functions as F  # noqa: N812

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import into_postgres, into_tables, on_spark

NAME = "two into PostgreSQL"
POINTS = on_spark.ALL_POINTS
SERVICES = ("postgres",)
SPARK = True
SHARES = True
ORDERED = False

_SHARED: Final = 50
"""Keys that both write in a batch."""


def run(job: Job) -> None:
    with psycopg.connect(job.services["postgres"]) as connection:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {into_postgres.table(job)} (id text UNIQUE, value text)"
        )
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda half: _write(job, half), range(2)))


def _write(job: Job, half: int) -> None:
    """The records whose number has this remainder."""
    own = replace(job, name=f"{job.name}-{half}", folder=str(Path(job.folder, str(half))))
    rows = into_tables.rows(own)
    number = F.regexp_extract("value", r"t\d+-(\d{6})", 1).cast("int")
    # Of the numbers of a batch, wherever it begins, one of each half brings the shared keys along.
    block = F.floor(number / job.per_batch).cast("int")
    keys = F.sequence(F.lit(1), F.lit(_SHARED))
    shared = F.transform(keys, lambda key: F.format_string("%06d-%03d", block, key))
    none = F.array().cast("array<string>")
    brings = number % job.per_batch == half
    ids = F.when(brings, F.sort_array(shared, asc=half == 0)).otherwise(none)
    all_ids = F.concat(F.array(F.lit(None).cast("string")), ids)
    written = rows.where(number % 2 == half).select(F.explode(all_ids).alias("id"), "value")
    place = into_postgres.options(own) | {"dbtable": into_postgres.table(job)}
    on_spark.write_to("postgres", written, own, writeMode="upsert", keyColumns="id", **place)


def collect(job: Job) -> list[Record]:
    """A null key equals no other, so a row of one's own that is written again is there twice."""
    own = f"SELECT value FROM {into_postgres.table(job)} WHERE id IS NULL"
    return into_tables.records(value for (value,) in into_postgres.ask(job, own))


def progress(job: Job) -> Mapping[int, int]:
    """Of either its own; none is that of both."""
    return {}
