"""Staging tables last, stand in nobody's way, and give no rows to who did not stage them."""

from __future__ import annotations

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deliver.postgres_schema import Schema, batch_of, stage, write
from deliver.test_postgres_locks import wait_until
from sparkonce.deliver.postgres import stages
from sparkonce.deliver.store import Part, Stage, StoreError
from sparkonce.local import LocalPostgres
from sparkonce.local.installation import find_postgres
from sparkonce.local.owner import Owner

TABLE = "CREATE TABLE target (id bigint, name text)"
STAGES = (
    "SELECT relname, oid, relfilenode FROM pg_class WHERE relname LIKE 'sparkonce|_%' ESCAPE '|'"
)


def rows(first: int, count: int = 10) -> list[dict[str, object]]:
    return [{"id": first + number, "name": "a" * 50} for number in range(count)]


def staging(schema: Schema) -> list[tuple[Any, ...]]:
    """What the catalogue has of each: an empty table has another file than before."""
    return schema.rows(
        "relname, oid, relfilenode",
        "pg_class WHERE relname LIKE 'sparkonce%' AND relkind = 'r' "
        f"AND relnamespace = '{schema.name}'::regnamespace",
    )


def test_batches_and_drivers_share_one_table(schema: Schema) -> None:
    schema.execute(TABLE)
    store, epoch = schema.open()
    (made,) = staging(schema)
    for attempt in range(1, 6):
        write(store, epoch, rows(attempt * 10), attempt)
        assert staging(schema) == [made]
        assert schema.rows("count(*)", made[0]) == [(0,)]
    store.close()
    store, _ = schema.open()
    assert [each[:2] for each in staging(schema)] == [made[:2]]
    store.close()


def test_attempts_of_one_time_have_tables_of_their_own(schema: Schema) -> None:
    """Under `none` batches wait for their turn while others are staged."""
    schema.execute(TABLE)
    store, epoch = schema.open()
    parts = [stage(store, epoch, rows(attempt * 10), attempt) for attempt in range(4)]
    assert len({part.name.partition("@")[0] for part in parts}) == 4
    for attempt, part in enumerate(parts):
        transaction = store.begin(epoch)
        assert transaction.load([part]).records == 10
        transaction.commit()
        store.discard(epoch, attempt)
    assert [id_ for (id_,) in schema.rows("id")] == list(range(40))
    assert len(staging(schema)) == 4
    store.close()


def test_a_batch_job_leaves_no_table(schema: Schema) -> None:
    schema.execute(TABLE)
    store, epoch = schema.open(runId="today")
    write(store, epoch, rows(0))
    assert len(staging(schema)) == 1
    store.close()
    assert staging(schema) == []


def test_another_dataframe_has_another_table(schema: Schema) -> None:
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text)")
    store, _ = schema.open()
    (former,) = staging(schema)
    store.close()
    store, _ = schema.open(dead="dead")
    (made,) = staging(schema)
    assert made[0] != former[0]
    store.close()


# -- beside others ------------------------------------------------------------------------------


def test_nobody_waits_for_who_reads_all_tables(schema: Schema) -> None:
    """As `pg_dump` does, from its beginning to its end."""
    schema.execute(TABLE)
    store, epoch = schema.open()
    write(store, epoch, rows(0))
    with schema.connect() as dump:
        for name, *_ in [*staging(schema), ("target",), ("ledger",)]:
            dump.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE")
        write(store, epoch, rows(10), 2)
        stage(store, epoch, rows(50), 3)
        store.close()
        store, epoch = schema.open()
        write(store, epoch, rows(20), 1)
        store.close()
    assert [id_ for (id_,) in schema.rows("id")] == list(range(30))


def test_a_table_that_nobody_can_empty_is_left_for_another(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_LARGE_BYTES", 0)
    monkeypatch.setattr(stages, "_FULL_BYTES", 100_000)
    monkeypatch.setattr(stages, "_LASTING", 1)
    schema.execute(TABLE)
    store, epoch = schema.open()
    (first,) = staging(schema)
    with schema.connect() as dump:
        dump.execute(f"LOCK TABLE {first[0]} IN ACCESS SHARE MODE")
        for attempt in range(8):
            write(store, epoch, rows(attempt * 500, 500), attempt)
        assert len(staging(schema)) == 2
    write(store, epoch, rows(4_000, 500), 9)
    ((last, *_),) = staging(schema)
    assert last == first[0]
    assert schema.rows("pg_table_size(oid) < 100000", f"pg_class WHERE relname = '{last}'") == [
        (True,)
    ]
    assert schema.rows("count(*), count(DISTINCT id)") == [(4_500, 4_500)]
    store.close()


@pytest.mark.parametrize("tables", [1, 2, 7])
def test_a_driver_that_starts_beside_tables_that_nobody_can_empty(
    schema: Schema, monkeypatch: pytest.MonkeyPatch, tables: int
) -> None:
    """As many as a former driver has left; a dump holds all of them, and goes on."""
    monkeypatch.setattr(stages, "_FULL_BYTES", 100_000)
    schema.execute(TABLE)
    store, epoch = schema.open()
    for attempt in range(tables):
        stage(store, epoch, rows(0, 2_000), attempt)
    full = staging(schema)
    assert len(full) == tables
    store.close()
    with schema.connect() as dump:
        for name, *_ in full:
            dump.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE")
        store, epoch = schema.open()
        for attempt in range(3):
            assert write(store, epoch, rows(attempt * 10), attempt).records == 10
        assert len(staging(schema)) == tables + 1
    write(store, epoch, rows(30), 4)
    assert len(staging(schema)) == min(tables + 1, 5)
    assert [id_ for (id_,) in schema.rows("id")] == list(range(40))
    store.close()


def test_a_table_that_is_dropped_as_its_size_is_asked_for(schema: Schema) -> None:
    schema.execute(TABLE)
    store, epoch = schema.open()
    ((name, *_),) = staging(schema)
    with ThreadPoolExecutor(1) as pool, schema.connect() as other:
        other.execute(f"DROP TABLE {name}")
        staged = pool.submit(stage, store, epoch, rows(0))
        waiting = f"pg_locks WHERE relation = '{name}'::regclass AND NOT granted"
        wait_until(lambda: schema.rows("count(*)", waiting) == [(1,)])
        other.commit()
        assert staged.result().records == 10
    store.close()


def test_large_stages_are_emptied_at_once(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_LARGE_BYTES", 8192)
    schema.execute(TABLE)
    store, epoch = schema.open()
    part = stage(store, epoch, rows(0, 500))
    transaction = store.begin(epoch)
    transaction.load([part])
    transaction.rollback()  # the rows are there again
    transaction = store.begin(epoch)
    transaction.load([part])
    transaction.commit()
    store.discard(epoch, 1)
    ((name, *_),) = staging(schema)
    assert schema.rows(f"pg_relation_size('{name}')", "(SELECT) AS nothing") == [(0,)]
    write(store, epoch, rows(500, 500), 2)
    assert schema.rows("count(*), count(DISTINCT id)") == [(1_000, 1_000)]
    store.close()


def test_a_zombie_does_not_empty_its_successors_stage(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_FULL_BYTES", 0)
    schema.execute(TABLE)
    zombie, former = schema.open()
    store, epoch = schema.open()
    part = stage(store, epoch, rows(0))
    stage(zombie, former, rows(50))  # it would like to have an empty one
    zombie.discard(former, 1)
    transaction = store.begin(epoch)
    assert transaction.load([part]).records == 10
    transaction.commit()
    store.close()
    zombie.close()


@pytest.mark.slow
def test_the_schema_can_be_dumped_at_any_time(schema: Schema, tmp_path: Path) -> None:
    """A table that is listed and then gone is an error of pg_dump's."""
    program = find_postgres(Owner.choose()).program("pg_dump")
    schema.execute(TABLE)
    ended, written = threading.Event(), []

    def run() -> None:
        store, epoch = schema.open()
        while not ended.is_set():
            written.append(write(store, epoch, rows(0, 100), len(written)).records)
        store.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(12):
            subprocess.run(
                [program, "--schema-only", "--schema", schema.name, "--dbname", schema.url],
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
            )
    finally:
        ended.set()
        thread.join()
    assert sum(written) > 0
    assert schema.rows("count(*)") == [(sum(written),)]


# -- a server that crashes ----------------------------------------------------------------------


@pytest.fixture
def server() -> LocalPostgres:
    # What is not flushed by a commit stays in memory until the crash.
    with LocalPostgres(settings={"wal_writer_delay": "10s", "autovacuum": "off"}) as server:
        yield server


def test_rows_of_others_are_not_taken_for_those_that_a_crash_has_emptied(
    server: LocalPostgres,
) -> None:
    """A COPY into an unlogged table flushes nothing: its transaction number is given out again."""
    schema = Schema(server.url, "public")
    schema.execute(TABLE)
    store, epoch = schema.open()
    tasks = store.stage(epoch, 1)
    told = _task(tasks, 1, "told")
    server.kill()
    server.start()
    for number in range(2, 40):
        _task(tasks, number, "of a second attempt")
    transaction = store.begin(epoch)
    with pytest.raises(StoreError, match="the server has crashed"):
        transaction.load([told])
    transaction.rollback()
    assert schema.rows() == []
    store.close()


def _task(tasks: Stage, number: int, name: str) -> Part:
    batch = batch_of([{"id": number, "name": name}])
    return Part(number, tasks(number, batch.schema, iter([batch])), 1, batch.nbytes)


def test_an_epoch_outlives_a_crash(server: LocalPostgres) -> None:
    """Or a second driver would be given the same one, and none of the two would be refused."""
    schema = Schema(server.url, "public")
    schema.execute(TABLE)
    schema.execute("ALTER DATABASE postgres SET synchronous_commit = off")
    schema.open()[0].close()
    store, epoch = schema.open()
    server.kill()
    server.start()
    assert store.holder().epoch == epoch
    store.close()
