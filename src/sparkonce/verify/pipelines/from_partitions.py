"""A partitioned table of PostgreSQL, by a column with transactions, into another table.

One of its partitions is attached when all others were read. Its rows were written before theirs,
and their keys are smaller.

Rows of a transaction wait until all older ones have ended, anywhere in the server. So no other
trial may run beside this one: what it attaches would wait for one that is held at a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg

from sparkonce.verify.contract import Job, Row
from sparkonce.verify.pipelines import from_table, into_postgres, on_spark

NAME = "from partitions"
POINTS = ("offsets", "end")
SERVICES = ("postgres",)
SPARK = True
ORDERED = False
ALTERS = True
collect = into_postgres.collect

_COLUMNS: Final = (
    "id bigint NOT NULL, key text, value text, txid xid8 NOT NULL DEFAULT pg_current_xact_id()"
)


def provide(job: Job, rows: Sequence[Row]) -> None:
    table, late, middle = from_table.table(job), _late(job), len(rows) // 2
    first, last = rows[0].number, rows[middle].number
    with psycopg.connect(job.services["postgres"]) as connection:
        connection.execute(f"CREATE TABLE {late} ({_COLUMNS})")
        from_table.insert(connection, late, rows[:middle])
        connection.execute(f"CREATE TABLE {table} ({_COLUMNS}) PARTITION BY RANGE (id)")
        connection.execute(
            f"CREATE TABLE {table}_last PARTITION OF {table} FOR VALUES FROM ({last}) TO (MAXVALUE)"
        )
        from_table.insert(connection, table, rows[middle:])
        connection.execute(f"ALTER TABLE {late} ADD CHECK (id >= {first} AND id < {last})")


def run(job: Job) -> None:
    _write(job)
    _attach(job)
    _write(job)


def _write(job: Job) -> None:
    table = from_table.table(job)
    rows = from_table.read_all(
        job, url=job.services["postgres"], dbtable=table, transactionColumn="txid"
    )
    place = into_postgres.options(job)
    on_spark.write_to("postgres", rows.select("key", "value"), job, **place)


def _attach(job: Job) -> None:
    """Unless a former life has."""
    table, late = from_table.table(job), _late(job)

    def attach(connection: psycopg.Connection) -> None:
        attached = "SELECT FROM pg_inherits WHERE inhrelid = %s::regclass"
        if connection.execute(attached, [late]).fetchall():
            return
        ends = connection.execute(f"SELECT min(id), max(id) + 1 FROM {late}").fetchone()
        assert ends is not None
        connection.execute(
            f"ALTER TABLE {table} ATTACH PARTITION {late} "
            f"FOR VALUES FROM ({ends[0]}) TO ({ends[1]})"
        )

    into_postgres.beside(job, attach)


def _late(job: Job) -> str:
    return f"{from_table.table(job)}_late"
