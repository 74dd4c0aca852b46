"""What a batch costs as the table grows, and as rows are bad: `scripts/bench deliver --growth`.

Without Spark and Kafka, which cost the same whatever the table: sinks are asked for a batch as
their driver and one task ask them, from staging to COMMIT, and a table of PostgreSQL is read as a
query with one task reads it. Medians, with the lowest and the highest beside them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import psycopg
import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType
from rich.console import Console
from rich.table import Table

from sparkonce.deliver.columns import BAD, ROW, Columns
from sparkonce.deliver.delta import target as delta_target
from sparkonce.deliver.duckdb import target as duckdb_target
from sparkonce.deliver.postgres import target as postgres_target
from sparkonce.deliver.store import Part
from sparkonce.deliver.target import TableTarget
from sparkonce.ingest import TableSource
from sparkonce.local import LocalPostgres

SIZES: Final = (100_000, 1_000_000, 4_000_000)
BAD_ROWS: Final = (0, 1, 10, 100, 1_000)
BATCH: Final = 10_000
BAD_BATCH: Final = 20_000
NEW_ROWS: Final = 1_000
TEXT: Final = "x" * 72
SCHEMA: Final = StructType(
    [
        StructField("id", LongType()),
        StructField("key", StringType()),
        StructField("text", StringType()),
    ]
)
_FILL: Final = "SELECT n, 'k' || n % 10000, repeat('x', 72) FROM"
_SERIES: Final = "generate_series({first}, {last}) AS s(n)"


@dataclass(frozen=True, slots=True)
class Sink:
    """A database to write to; its tables are filled by its own means."""

    name: str
    make: Callable[[dict[str, str]], TableTarget]
    options: dict[str, str]

    def open(self, **more: str) -> tuple[Any, int]:
        made = self.make(self.options | more)
        columns = Columns.plan(
            SCHEMA, made.settings, type_of=made.type_of, nested_as_json=made.nested_as_json
        )
        store = made.open_store(made.settings, columns)
        store.prepare()
        return store, store.take_over().epoch


def rows(ids: Sequence[int], *, dead_letters: bool = False) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "id": pa.array(ids, pa.int64()),
        "key": pa.array([f"k{each % 10_000}" for each in ids]),
        "text": pa.array([TEXT] * len(ids)),
    }
    if dead_letters:
        columns |= {name: pa.nulls(len(ids), pa.string()) for name in (BAD, ROW)}
    return pa.RecordBatch.from_pydict(columns)


def write(store: Any, epoch: int, attempt: int, batch: pa.RecordBatch) -> float:
    """One batch, as the sink does it; in seconds."""
    began_s = time.perf_counter()
    name = store.stage(epoch, attempt)(1, batch.schema, iter([batch]))
    transaction = store.begin(epoch)
    try:
        transaction.load([Part(1, name, batch.num_rows, batch.nbytes)])
        transaction.commit()
    finally:
        transaction.rollback()
        store.discard(epoch, attempt)
    return time.perf_counter() - began_s


def compare(rounds: int) -> None:
    console = Console()
    with LocalPostgres() as postgres, tempfile.TemporaryDirectory(prefix="sparkonce-") as folder:
        grown = sinks(postgres, Path(folder), rounds, console)
        show(console, f"Seconds for a batch of {BATCH:,} rows into a table of", SIZES, grown)
        bad = bad_rows(postgres, Path(folder), rounds, console)
        show(console, f"Seconds for a batch of {BAD_BATCH:,} rows, so many bad", BAD_ROWS, bad)
        read = sources(postgres, rounds, console)
        show(console, f"Seconds to find and read {NEW_ROWS:,} new rows in", SIZES, read)


Figures = dict[str, dict[int, list[float]]]


def show(console: Console, title: str, numbers: Sequence[int], figures: Figures) -> None:
    table = Table("", *(f"{number:,}" for number in numbers), title=title)
    for name, by_number in figures.items():
        cells = []
        for number in numbers:
            found = by_number.get(number, [])
            low_high = f" ({min(found):.3g} to {max(found):.3g})" if found else ""
            cells.append(f"{statistics.median(found):.3g}{low_high}" if found else "-")
        table.add_row(name, *cells)
    console.print(table)


# -- tables that grow ---------------------------------------------------------------------------


def sinks(postgres: LocalPostgres, folder: Path, rounds: int, console: Console) -> Figures:
    """Append and upsert; of the upsert, half of the keys are there."""
    figures: Figures = {}
    for size in SIZES:
        for name, writes, table in _filled(postgres, folder, size):
            console.print(f"{name}, {size:,} rows", highlight=False)
            store, epoch = table.open(**writes)
            half = BATCH // 2
            for number in range(rounds + 1):
                first = size + number * BATCH
                ids = range(first, first + BATCH)
                if "writeMode" in writes:
                    step = size // half
                    old = [each * step + number for each in range(half)]
                    ids = [*old, *range(first, first + half)]
                took_s = write(store, epoch, number + 1, rows(ids))
                if number:  # the first one learns the types
                    figures.setdefault(name, {}).setdefault(size, []).append(took_s)
            store.close()
    return figures


UPSERT: Final = {"writeMode": "upsert", "keyColumns": "id"}


def _filled(
    postgres: LocalPostgres, folder: Path, size: int
) -> Iterator[tuple[str, dict[str, str], Sink]]:
    for kind, writes in {"append": {}, "upsert": UPSERT}.items():
        yield f"PostgreSQL, {kind}", writes, _in_postgres(postgres, f"{kind}_{size}", size)
        yield f"DuckDB, {kind}", writes, _in_duckdb(folder, f"{kind}_{size}", size)
        yield f"Delta, {kind}", writes, _in_delta(folder, f"{kind}_{size}", size)


def _in_postgres(postgres: LocalPostgres, name: str, size: int) -> Sink:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, key text, text text)")
        series = _SERIES.format(first=0, last=size - 1)
        connection.execute(f"INSERT INTO {name} {_FILL} {series}")
        connection.execute(f"VACUUM ANALYZE {name}")
        connection.execute("CHECKPOINT")
    options = {"url": postgres.url, "dbtable": name, "pipeline": name}
    return Sink("PostgreSQL", lambda given: postgres_target(given, None), options)


def _in_duckdb(folder: Path, name: str, size: int) -> Sink:
    path = str(folder / f"{name}.duckdb")
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE target (id bigint PRIMARY KEY, key text, text text)")
        connection.execute(f"INSERT INTO target {_FILL} range({size}) AS s(n)")
    options = {"path": path, "dbtable": "target", "pipeline": name}
    return Sink("DuckDB", lambda given: duckdb_target(given, None), options)


def _in_delta(folder: Path, name: str, size: int) -> Sink:
    path = str(folder / f"{name}.delta")
    sink = Sink(
        "Delta",
        lambda given: delta_target(given, None),
        {"path": path, "txnAppId": name, "createTable": "true"},
    )
    store, epoch = sink.open()
    for attempt, first in enumerate(range(0, size, 500_000), 1):
        write(store, epoch, attempt, rows(range(first, min(size, first + 500_000))))
    store.close()
    return sink


# -- bad rows -----------------------------------------------------------------------------------


def bad_rows(postgres: LocalPostgres, folder: Path, rounds: int, console: Console) -> Figures:
    """Refused by a constraint, and spread evenly: the dearest way to be bad."""
    figures: Figures = {}
    for number in range(rounds + 1):
        for count in BAD_ROWS if number % 2 else reversed(BAD_ROWS):
            name = f"bad_{number}_{count}"
            console.print(f"bad rows: {count:,}", highlight=False)
            for sink in (_refusing_postgres(postgres, name), _refusing_duckdb(folder, name)):
                store, epoch = sink.open(deadLetterTable=f"{name}_dead")
                every = BAD_BATCH // count if count else BAD_BATCH + 1
                ids = [-n if n % every == 0 else n for n in range(1, BAD_BATCH + 1)]
                before = _transactions(postgres)
                took_s = write(store, epoch, 1, rows(ids, dead_letters=True))
                spent = _transactions(postgres) - before
                store.close()
                if not number:
                    continue
                figures.setdefault(sink.name, {}).setdefault(count, []).append(took_s)
                if sink.name == "PostgreSQL":
                    of = figures.setdefault("(transaction numbers of PostgreSQL)", {})
                    of.setdefault(count, []).append(spent)
    return figures


def _transactions(postgres: LocalPostgres) -> int:
    """The server's own count; to ask costs none."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        asked = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
        found = connection.execute(asked).fetchone()
    assert found
    return int(found[0])


def _refusing_postgres(postgres: LocalPostgres, name: str) -> Sink:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (id bigint CHECK (id > 0), key text, text text)")
    options = {"url": postgres.url, "dbtable": name, "pipeline": name}
    return Sink("PostgreSQL", lambda given: postgres_target(given, None), options)


def _refusing_duckdb(folder: Path, name: str) -> Sink:
    path = str(folder / f"{name}.duckdb")
    with duckdb.connect(path) as connection:
        connection.execute(f"CREATE TABLE {name} (id bigint CHECK (id > 0), key text, text text)")
    options = {"path": path, "dbtable": name, "pipeline": name}
    return Sink("DuckDB", lambda given: duckdb_target(given, None), options)


# -- tables that are read -----------------------------------------------------------------------

READS: Final[dict[str, dict[str, str]]] = {
    "xmin alone": {},
    "keyLag": {"keyLag": "0"},
    "updateColumn": {"updateColumn": "changed"},
    "transactionColumn": {"transactionColumn": "xid"},
    "updateColumn, transactionColumn": {"transactionColumn": "xid", "updateColumn": "changed"},
}


def sources(postgres: LocalPostgres, rounds: int, console: Console) -> Figures:
    """Rows that were added behind what is read; a look that finds nothing beside them."""
    figures: Figures = {}
    for size in SIZES:
        name = f"source_{size}"
        _fill_source(postgres, name, size)
        for mode, options in READS.items():
            console.print(f"read with {mode}, {size:,} rows", highlight=False)
            with _reader(postgres, name, options) as read:
                done, _ = read(None)
                for number in range(rounds + 1):
                    began_s = time.perf_counter()
                    done, count = read(done)
                    looked_s = time.perf_counter() - began_s
                    assert count == 0, f"{mode}: {count} rows where there is nothing new"
                    _add_rows(postgres, name)
                    began_s = time.perf_counter()
                    done, count = read(done)
                    took_s = time.perf_counter() - began_s
                    assert count == NEW_ROWS, f"{mode}: {count} rows, not {NEW_ROWS}"
                    if number:
                        figures.setdefault(mode, {}).setdefault(size, []).append(took_s)
                        nothing = figures.setdefault(f"{mode}, nothing new", {})
                        nothing.setdefault(size, []).append(looked_s)
    return figures


def _fill_source(postgres: LocalPostgres, name: str, size: int) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {name} (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "
            "text text, changed timestamptz NOT NULL DEFAULT now(), "
            "xid xid8 NOT NULL DEFAULT pg_current_xact_id())"
        )
        connection.execute(
            "CREATE OR REPLACE FUNCTION set_xid() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN NEW.xid := pg_current_xact_id(); RETURN NEW; END $$"
        )
        connection.execute(
            f"CREATE TRIGGER fills BEFORE INSERT OR UPDATE ON {name} "
            "FOR EACH ROW EXECUTE FUNCTION set_xid()"
        )
        connection.execute(
            f"INSERT INTO {name} (text) SELECT repeat('x', 72) FROM generate_series(1, {size})"
        )
        connection.execute(f"CREATE INDEX ON {name} (xid)")
        connection.execute(f"CREATE INDEX ON {name} (changed, id)")
        connection.execute(f"VACUUM ANALYZE {name}")


def _add_rows(postgres: LocalPostgres, name: str) -> None:
    with psycopg.connect(postgres.url) as connection:
        connection.execute(
            f"INSERT INTO {name} (text) SELECT repeat('x', 72) FROM generate_series(1, {NEW_ROWS})"
        )


Read = Callable[[dict[str, Any] | None], tuple[dict[str, Any], int]]


@contextmanager
def _reader(postgres: LocalPostgres, name: str, options: dict[str, str]) -> Iterator[Read]:
    """From an offset to all there is; from None it begins behind all that is there."""
    given = {"url": postgres.url, "dbtable": name, "keyColumn": "id", "startingOffsets": "latest"}
    source = TableSource(given | options)
    reader = source.streamReader(source.schema())

    def read(start: dict[str, Any] | None) -> tuple[dict[str, Any], int]:
        if start is None:
            first = reader.initialOffset()
            return reader.latestOffset(first, ReadAllAvailable()), 0
        end = reader.latestOffset(start, ReadAllAvailable())
        count = 0
        for part in reader.partitions(start, end) if end != start else ():
            count += sum(batch.num_rows for batch in reader.read(part))
        return end, count

    try:
        yield read
    finally:
        with suppress(psycopg.Error):
            reader.stop()
