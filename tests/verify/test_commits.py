"""The proxy before PostgreSQL: a chosen COMMIT reaches the server, and its answer nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from sparkonce.local import LocalPostgres
from sparkonce.verify.commits import CommitProxy
from sparkonce.verify.schedule import AtCommit


@contextmanager
def proxied(postgres: LocalPostgres, *elements: AtCommit) -> Iterator[tuple[str, list[AtCommit]]]:
    reached: list[AtCommit] = []
    proxy = CommitProxy(postgres.port, {each.nth: each for each in elements}, reached.append)
    proxy.start()
    try:
        yield proxy.through(postgres.url), reached
    finally:
        proxy.stop()


def write(url: str, table: str, value: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute(f"SELECT * FROM {table} FOR UPDATE")
        connection.execute(f"INSERT INTO {table} VALUES (%s)", (value,))
        connection.execute("COMMIT")


@pytest.fixture
def table(postgres: LocalPostgres, postgres_schema: str) -> str:
    with psycopg.connect(postgres.url) as connection:
        connection.execute(f"CREATE TABLE {postgres_schema}.t (value int)")
    return f"{postgres_schema}.t"


def test_the_second_commit_has_no_answer_and_happened(postgres: LocalPostgres, table: str) -> None:
    with proxied(postgres, AtCommit(nth=2)) as (url, reached):
        write(url, table, 1)
        assert reached == []
        with pytest.raises(psycopg.OperationalError):
            write(url, table, 2)
        write(url, table, 3)
        assert reached == [AtCommit(nth=2)]
    with psycopg.connect(postgres.url) as connection:
        # Behind the lock of whoever is still at it.
        connection.execute(f"LOCK TABLE {table}")
        assert connection.execute(f"SELECT value FROM {table} ORDER BY 1").fetchall() == [
            (1,), (2,), (3,)
        ]  # fmt: skip


def test_commits_that_hold_no_lock_are_let_through(postgres: LocalPostgres, table: str) -> None:
    with proxied(postgres, AtCommit(nth=1)) as (url, reached):
        with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
            connection.execute(f"INSERT INTO {table} VALUES (1)")
        assert reached == []


def test_what_is_left_can_be_let_through(postgres: LocalPostgres, table: str) -> None:
    reached = threading.Event()
    planned = {1: AtCommit(nth=1)}
    proxy = CommitProxy(postgres.port, planned, lambda element: reached.set())
    proxy.start()
    proxy.clear()
    write(proxy.through(postgres.url), table, 1)
    proxy.stop()
    assert not reached.is_set()
