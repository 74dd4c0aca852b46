"""A horizon that stands still is told, with who holds it, and ever less often."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ingest.following import Follower
from sparkonce.ingest.postgres import horizon_watch
from sparkonce.ingest.postgres.horizon import Horizon, horizon_now
from sparkonce.ingest.postgres.horizon_watch import HorizonWatch

Connect = Callable[[], psycopg.Connection[Any]]
Follow = Callable[..., Follower]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def control(connect: Connect) -> psycopg.Connection[Any]:
    connection = connect()
    connection.autocommit = True
    return connection


def _ask(connection: psycopg.Connection[Any]) -> Any:
    return lambda sql: connection.execute(sql.encode()).fetchall()


def test_a_forgotten_transaction_is_named(
    connect: Connect, control: psycopg.Connection[Any], clock: Clock, caplog: Any
) -> None:
    watch, ask = HorizonWatch("public.t", clock), _ask(control)
    forgotten = connect()
    forgotten.execute("SET application_name = 'nightly'")
    forgotten.execute("SELECT pg_current_xact_id()")
    control.execute("SELECT pg_current_xact_id()")  # there is something behind it
    for seconds in (0, 59):
        clock.now_s = 1000.0 + seconds
        watch.note(horizon_now(control), ask)
    assert caplog.records == []
    clock.now_s = 1060.0
    watch.note(horizon_now(control), ask)
    (record,) = caplog.records
    pid = forgotten.info.backend_pid
    said = record.getMessage()
    assert record.levelno == logging.WARNING and record.name == "sparkonce.ingest"
    assert said.startswith("public.t: for 60 s nothing could be read that was written since")
    assert (
        f"pid {pid} (user postgres, application 'nightly', idle in transaction), open for" in said
    )
    assert f"pg_terminate_backend({pid})" in said
    report = watch.report
    assert (report["heldSeconds"], report["heldBy"][: len(f"pid {pid}")]) == (60, f"pid {pid}")
    control.execute("SELECT pg_terminate_backend(%s)", [pid])
    _await_end(control, pid)
    watch.note(horizon_now(control), ask)
    assert watch.report["heldSeconds"] == 0 and "heldBy" not in watch.report


def _await_end(control: psycopg.Connection[Any], pid: int) -> None:
    for _ in range(1000):
        sql = "SELECT count(*) = 0, pg_sleep(0.01) FROM pg_stat_activity WHERE pid = %s"
        row = control.execute(sql, [pid]).fetchone()
        if row is not None and row[0]:
            return
    raise AssertionError("the session did not end")


def test_a_prepared_transaction_is_named(
    connect: Connect, control: psycopg.Connection[Any], clock: Clock, caplog: Any, table: str
) -> None:
    watch, ask = HorizonWatch("public.t", clock), _ask(control)
    writer = connect()
    writer.execute("SELECT pg_current_xact_id()")
    writer.execute(f"PREPARE TRANSACTION '{table}'")
    writer.commit()
    try:
        control.execute("SELECT pg_current_xact_id()")
        watch.note(horizon_now(control), ask)
        clock.now_s += 60
        watch.note(horizon_now(control), ask)
    finally:
        control.execute(f"ROLLBACK PREPARED '{table}'".encode())
    (record,) = caplog.records
    assert f"the prepared transaction '{table}' of user postgres" in record.getMessage()
    assert f"ROLLBACK PREPARED '{table}', in the database postgres" in record.getMessage()


def test_a_reader_without_rights_is_told_the_pid(
    connect: Connect, control: psycopg.Connection[Any], clock: Clock, caplog: Any, table: str
) -> None:
    control.execute(f"CREATE ROLE {table}".encode())
    try:
        forgotten, reader = connect(), connect()
        reader.autocommit = True
        reader.execute(f"SET ROLE {table}".encode())
        watch = HorizonWatch("public.t", clock)
        forgotten.execute("SELECT pg_current_xact_id()")
        control.execute("SELECT pg_current_xact_id()")
        watch.note(horizon_now(reader), _ask(reader))
        clock.now_s += 60
        watch.note(horizon_now(reader), _ask(reader))
    finally:
        control.execute(f"DROP ROLE {table}".encode())
    (record,) = caplog.records
    assert f"pid {forgotten.info.backend_pid} (user postgres). To go on" in record.getMessage()


def test_warnings_become_rarer(clock: Clock, caplog: Any) -> None:
    watch = HorizonWatch("public.t", clock)
    told = []
    for second in range(0, 6 * 3600, 10):
        clock.now_s = 1000.0 + second
        watch.note(Horizon(7, 9), lambda _: [])
        if len(caplog.records) > len(told):
            told.append(second)
    assert told == [60, 120, 240, 480, 960, 1920, 3840, 7440, 11040, 14640, 18240]
    assert watch.report == {
        "xid": 7,
        "nextXid": 9,
        "heldSeconds": 6 * 3600 - 10,
        "heldBy": "a transaction of another server",
    }


def test_a_horizon_that_moves_or_has_nothing_behind_it_is_no_matter(
    clock: Clock, caplog: Any
) -> None:
    watch = HorizonWatch("public.t", clock)
    for second in range(0, 3600, 10):
        clock.now_s = 1000.0 + second
        watch.note(Horizon(second, second + 5), lambda _: [])
        assert watch.report["heldSeconds"] == 0
    for second in range(3600, 7200, 10):
        clock.now_s = 1000.0 + second
        watch.note(Horizon(4000, 4000), lambda _: [])
        assert watch.report["heldSeconds"] == 0
    assert caplog.records == []


def test_a_reader_watches_its_horizon(
    connect: Connect, follow: Follow, table: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon_watch, "_FIRST_WARNING_S", 0.0)
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
    follower = follow(dbtable=table)
    open_ = connect()
    open_.execute(f"INSERT INTO {table} DEFAULT VALUES")
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    follower.drain()
    follower.drain()
    assert f"pid {open_.info.backend_pid}" in caplog.text
    assert follower.table.report()["heldBy"].startswith(f"pid {open_.info.backend_pid}")
