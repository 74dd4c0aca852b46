"""A server that says nothing: one that was stopped, one that is cut off, one that never finishes.

No call waits for it without an end, and what became of a commit is asked, not guessed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from deliver.postgres_schema import Schema, batch_of, write
from deliver.test_postgres_locks import wait_until
from ingest.following import Follower
from sparkonce.deliver.conformance import ENTRY, SOURCES
from sparkonce.deliver.postgres.store import PostgresStore
from sparkonce.deliver.sink import TableSink
from sparkonce.deliver.store import StoreError
from sparkonce.errors import ConfigError, OutcomeUnknown
from sparkonce.ingest.table import SourceError
from sparkonce.local import LocalPostgres
from sparkonce.postgresql import silence

ROW = {"id": 1, "name": "a"}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    """Not the one of other tests, whose connections would stand still as well."""
    with LocalPostgres() as server:
        yield server


@pytest.fixture
def schema(server: LocalPostgres, request: pytest.FixtureRequest) -> Iterator[Schema]:
    name = f"s_{abs(hash(request.node.name)):x}"
    schema = Schema(server.url, name)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
        schema.execute("CREATE TABLE target (id bigint, name text)")
        yield schema
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '10s'")
        connection.execute(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is late in these tests but those who never come."""
    monkeypatch.setattr(silence, "_KNOCK_AFTER_S", 0.5)
    monkeypatch.setattr(silence, "_KNOCK_S", 2)  # libpq takes no less
    monkeypatch.setattr("sparkonce.deliver.postgres.connection.PATIENCE_S", 0)
    monkeypatch.setattr("sparkonce.ingest.postgres.connection.PATIENCE_S", 0)
    monkeypatch.setitem(
        __import__("sparkonce.postgresql.url", fromlist=["_"])._ALIVE, "connect_timeout", "2"
    )


@contextmanager
def stopped(server: LocalPostgres) -> Iterator[None]:
    """All its processes; the machine's kernel still takes what is sent to it."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextmanager
def stopped_backend(schema: Schema, name: str) -> Iterator[None]:
    """One process of it alone, as under a debugger: the server takes new clients."""
    ((pid,),) = schema.rows("pid", f"pg_stat_activity WHERE application_name LIKE '{name}'")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


CALLS: dict[str, Callable[[PostgresStore, int], object]] = {
    "take over": lambda store, epoch: store.take_over(),
    "ask the ledger": lambda store, epoch: store.holder(),
    "stage": lambda store, epoch: store.stage(epoch, 9),
    "begin": lambda store, epoch: store.begin(epoch),
    "discard": lambda store, epoch: store.discard(epoch, 1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_of_a_driver(
    server: LocalPostgres, schema: Schema, call: Callable[[PostgresStore, int], object]
) -> None:
    store, epoch = schema.open()
    store.stage(epoch, 1)
    with stopped(server), pytest.raises(StoreError, match=r"said nothing|connection timeout"):
        call(store, epoch)
    assert write(store, epoch, [ROW], 2).records == 1
    store.close()


def test_a_load(server: LocalPostgres, schema: Schema) -> None:
    store, epoch = schema.open()
    from deliver.postgres_schema import stage

    part = stage(store, epoch, [ROW])
    transaction = store.begin(epoch)
    with stopped(server):
        with pytest.raises(StoreError, match="said nothing"):
            transaction.load([part])
        transaction.rollback()
    assert write(store, epoch, [ROW], 2).records == 1
    store.close()


def test_a_task(server: LocalPostgres, schema: Schema) -> None:
    """Its rows are in the middle of a COPY, or all sent; or its connection was kept."""
    store, epoch = schema.open()
    write(store, epoch, [ROW])
    batch = batch_of([ROW])

    def rows(when: int) -> Iterator[Any]:
        for number in range(3):
            if number == when:
                server.pause()
            yield batch

    for attempt, when in enumerate((0, 2), start=2):
        tasks = store.stage(epoch, attempt)
        try:
            with pytest.raises(StoreError, match="staged: the server has said nothing"):
                tasks(attempt, batch.schema, rows(when))
        finally:
            server.resume()
    assert write(store, epoch, [ROW], 5).records == 1
    store.close()


def test_time_that_spark_takes_is_not_the_servers(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, epoch = schema.open(queryTimeout="1")
    batch = batch_of([ROW])
    counted = silence.Silence("", 1.0)
    now_s = 0.0
    monkeypatch.setattr(silence.time, "monotonic", lambda: now_s)
    counted.begin()
    counted.pause()
    now_s = 100.0
    counted.check()
    counted.begin()
    now_s = 101.5
    with pytest.raises(silence.NoAnswer, match="queryTimeout"):
        counted.check()
    monkeypatch.undo()
    assert store.stage(epoch, 1)(1, batch.schema, iter([batch]))
    store.close()


@pytest.mark.parametrize("name", ["%_driver", "%_writer"])
def test_a_server_that_takes_clients_and_never_finishes(schema: Schema, name: str) -> None:
    store, epoch = schema.open(queryTimeout="2")
    transaction = store.begin(epoch)
    with stopped_backend(schema, name), pytest.raises((StoreError, OutcomeUnknown)) as raised:
        if name == "%_writer":
            transaction.commit()
        else:
            store.discard(epoch, 1)
            store.stage(epoch, 2)
    assert "queryTimeout" in str(raised.value)
    transaction.rollback()
    store.close()


def test_a_statement_that_takes_too_long_is_ended_on_the_server(schema: Schema) -> None:
    store, _ = schema.open(queryTimeout="1")
    connection = store._driver.connection()
    with pytest.raises(psycopg.OperationalError, match="queryTimeout"):
        connection.execute("SELECT pg_sleep(600)")
    running = "pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()"
    wait_until(lambda: schema.rows("count(*)", f"{running} AND state = 'active'") == [(0,)])
    assert connection.closed
    store.close()


@pytest.mark.parametrize("text", ["0", "1s", "-1", "soon"])
def test_query_timeouts_that_are_none(schema: Schema, text: str) -> None:
    with pytest.raises(ConfigError, match="queryTimeout"):
        schema.store(queryTimeout=text)


# -- the answer to COMMIT -------------------------------------------------------------------------


def sink(schema: Schema) -> TableSink:
    store = schema.store()
    made = TableSink(store._layout.settings, store._layout.columns, store, None, None)
    made.take_over()
    return made


@pytest.mark.parametrize("happens", [True, False])
def test_a_commit_without_an_answer_is_settled_by_the_ledger(
    server: LocalPostgres, schema: Schema, monkeypatch: pytest.MonkeyPatch, happens: bool
) -> None:
    """The server is stopped with the COMMIT in its socket, which it finds when it goes on; or it is
    killed before."""
    made = sink(schema)
    monkeypatch.setattr("sparkonce.deliver.postgres.connection.PATIENCE_S", 60)
    transaction = made._store.begin(made._held.epoch)
    transaction.note(ENTRY, SOURCES)
    server.pause()
    with pytest.raises(OutcomeUnknown, match="no answer to COMMIT: the server has said nothing"):
        transaction.commit()
    server.resume() if happens else server.kill()
    if not happens:
        server.start()
    unknown = OutcomeUnknown("no answer")
    if happens:
        made._settle(ENTRY, unknown)
    else:
        with pytest.raises(StoreError, match="did not happen"):
            made._settle(ENTRY, unknown)
    made.close()


def test_a_commit_whose_ledger_can_not_be_asked(server: LocalPostgres, schema: Schema) -> None:
    made = sink(schema)
    transaction = made._store.begin(made._held.epoch)
    transaction.note(ENTRY, SOURCES)
    made._transaction, made._noted = transaction, (ENTRY, SOURCES)
    with stopped(server), pytest.raises(OutcomeUnknown, match="ledger can't be asked"):
        made.decide()
    made.close()


# -- a table as a source --------------------------------------------------------------------------


def test_a_table_that_is_read(server: LocalPostgres, schema: Schema) -> None:
    schema.execute("CREATE TABLE source (id bigint PRIMARY KEY)")
    schema.execute("INSERT INTO source VALUES (1)")
    follower = Follower({"url": server.url, "dbtable": f"{schema.name}.source", "keyColumn": "id"})
    table = follower.table
    start = table.start(latest=False)
    end = table.advance(start, None)
    (span,) = table.spans(start, end)
    with stopped(server):
        for call in (
            lambda: table.advance(start, None),
            lambda: list(table.read(start, end, span, table.columns())),
        ):
            with pytest.raises(SourceError, match=r"said nothing|connection timeout|timeout"):
                call()
    schema.execute("INSERT INTO source VALUES (2)")
    assert [row["id"] for row in follower.drain()] == [1, 2]
    follower.close()


def test_a_task_in_the_middle_of_its_rows(server: LocalPostgres, schema: Schema) -> None:
    schema.execute("CREATE TABLE source (id bigint PRIMARY KEY, v text)")
    schema.execute(
        "INSERT INTO source SELECT n, repeat('x', 1000) FROM generate_series(1, 99999) n"
    )
    follower = Follower({"url": server.url, "dbtable": f"{schema.name}.source", "keyColumn": "id"})
    table = follower.table
    start = table.start(latest=False)
    end = table.advance(start, None)
    (span,) = table.spans(start, end)
    rows = table.read(start, end, span, table.columns())
    assert next(rows).num_rows
    with stopped(server), pytest.raises(SourceError, match="said nothing"):
        list(rows)
    follower.close()
