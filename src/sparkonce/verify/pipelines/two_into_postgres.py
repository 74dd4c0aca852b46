"""Two pipelines to one table of PostgreSQL, each with half of the input.

In each batch either of them writes rows of its own, and upserts many that the other one upserts as
well, in the opposite order. With some of these written it waits until the other one has as well, or
waits for it: so they are in each other's way in every batch, and lock each other out unless both
take the keys in one order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import psycopg
from pyspark.sql import functions as F  # noqa: N812

from sparkonce.verify.contract import Job, Record, Unit
from sparkonce.verify.pipelines import into_postgres, into_tables, on_spark

NAME = "two into PostgreSQL"
POINTS = on_spark.ALL_POINTS
SERVICES = ("postgres",)
SPARK = True
SHARES = True
ORDERED = False

_SHARED: Final = 50
"""Keys that both write in a batch."""
_MIDDLE: Final = f"%-{_SHARED // 2:03}"
_MET_WITHIN_S: Final = 5
"""One that has no more to do, or stands at a point, is not waited for for ever."""
_NUMBER: Final = re.compile(r"t\d+-(\d{6})")
# pg_locks has no snapshot: each look is at what is there now.
_MEET: Final = """
CREATE FUNCTION {table}_meet() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE deadline timestamptz := clock_timestamp() + interval '{seconds} s';
BEGIN
    PERFORM pg_advisory_xact_lock_shared(TG_RELID::int, 0);
    LOOP
        EXIT WHEN clock_timestamp() > deadline OR EXISTS (
            SELECT FROM pg_locks WHERE pid <> pg_backend_pid() AND (
                locktype = 'advisory' AND classid = TG_RELID AND objid = 0
                OR NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))));
        PERFORM pg_sleep(0.01);
    END LOOP;
    RETURN NEW;
END $$;
CREATE TRIGGER meet BEFORE INSERT ON {table} FOR EACH ROW
    WHEN (NEW.id LIKE '{middle}') EXECUTE FUNCTION {table}_meet();
"""


def run(job: Job) -> None:
    _make_table(job)
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda half: _write(job, half), range(2)))


def _make_table(job: Job) -> None:
    table = into_postgres.table(job)

    def make(connection: psycopg.Connection) -> None:
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() != (None,):
            return
        connection.execute(f"CREATE TABLE {table} (id text UNIQUE, value text)")
        connection.execute(_MEET.format(table=table, seconds=_MET_WITHIN_S, middle=_MIDDLE))

    into_postgres.beside(job, make)


def _half(job: Job, half: int) -> Job:
    return replace(job, name=f"{job.name}-{half}", folder=str(Path(job.folder, str(half))))


def _write(job: Job, half: int) -> None:
    """The records whose number has this remainder."""
    own = _half(job, half)
    rows = into_tables.rows(own)
    number = F.regexp_extract("value", _NUMBER.pattern, 1).cast("int")
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
    found = into_postgres.ask(job, f"SELECT id, value FROM {into_postgres.table(job)}")
    own = [value for key, value in found if key is None]
    shared = [(key, value) for key, value in found if key is not None]
    return into_tables.records([*own, *wrong(own, shared, job.per_batch)])


def wrong(own: Iterable[str], shared: Iterable[tuple[str, str]], per_batch: int) -> Iterator[str]:
    """What the shared rows are not as they should be, in words that no record has.

    Whoever wrote a block's rows last has written all of them, and a row of its own beside them.
    """
    due: dict[str, set[str]] = defaultdict(set)
    for value in own:
        found = _NUMBER.match(value)
        if found and int(found[1]) % per_batch < 2:
            due[f"{int(found[1]) // per_batch:06}"].add(value)
    there: dict[str, dict[str, str]] = defaultdict(dict)
    for key, value in shared:
        there[key.partition("-")[0]][key] = value
    for block in sorted(due | there):
        keys = {f"{block}-{number:03}" for number in range(1, _SHARED + 1)}
        values = set(there[block].values())
        if there[block].keys() != keys:
            yield f"block {block}: {len(there[block])} of {len(keys)} shared rows"
        elif len(values) > 1:
            yield f"block {block}: a part of its rows each of {', '.join(sorted(values))}"
        elif not values <= due[block]:
            yield f"block {block}: of {', '.join(values)}, which has no row of its own"


def progress(job: Job) -> Mapping[int, int]:
    """Of each its own: numbers of one remainder are in the partitions of that remainder."""
    return {
        index: offset
        for half in range(2)
        for index, offset in into_postgres.progress(_half(job, half)).items()
        if index % 2 == half
    }


def units(job: Job) -> dict[str, Unit]:
    return {
        f"{name} of {half}": {
            index: offsets for index, offsets in unit.items() if index % 2 == half
        }
        for half in range(2)
        for name, unit in on_spark.units(_half(job, half)).items()
    }
