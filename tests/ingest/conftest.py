"""A real PostgreSQL for all tests of this room, and readers driven as Spark drives them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from ingest.following import Follower
from sparkonce.local.postgres import LocalPostgres

Connect = Callable[[], psycopg.Connection[Any]]


@pytest.fixture(scope="session")
def _server() -> Iterator[LocalPostgres]:
    # Its log is on disk sooner than by default, and so are the horizons that tests wait for.
    settings = {"max_prepared_transactions": "20", "wal_writer_delay": "5ms"}
    with LocalPostgres(settings=settings) as server:
        yield server


@pytest.fixture
def postgres(_server: LocalPostgres) -> LocalPostgres:
    """Shared by all tests: use tables of your own, and leave no transaction open."""
    return _server


@pytest.fixture
def _names(postgres: LocalPostgres) -> Iterator[list[str]]:
    """Tables go when the test's connections have ended, which may hold locks on them."""
    names: list[str] = []
    yield names
    with psycopg.connect(postgres.url) as connection:
        for name in names:
            found = connection.execute(
                "SELECT quote_ident(relname), relkind = 'f' FROM pg_class "
                "WHERE relkind IN ('r', 'p', 'f') AND starts_with(relname, %s) ORDER BY oid",
                [name],
            ).fetchall()
            for each, is_foreign in found:
                kind = "FOREIGN TABLE" if is_foreign else "TABLE"
                connection.execute(f"DROP {kind} IF EXISTS {each} CASCADE".encode())


@pytest.fixture
def connect(postgres: LocalPostgres, _names: list[str]) -> Iterator[Connect]:
    """Connections that end with the test, and their transactions with them."""
    opened: dict[int, psycopg.Connection[Any]] = {}

    def make() -> psycopg.Connection[Any]:
        connection = psycopg.connect(postgres.url)
        opened[connection.info.backend_pid] = connection
        return connection

    yield make
    for connection in opened.values():
        connection.close()
    _await_end(postgres, list(opened))


@pytest.fixture
def table(_names: list[str]) -> str:
    """The name of a table that is not there yet, and goes with the test; so do those whose names
    begin with it."""
    _names.append(f"t_{uuid.uuid4().hex[:12]}")
    return _names[-1]


@pytest.fixture
def follow(postgres: LocalPostgres) -> Iterator[Callable[..., Follower]]:
    followers: list[Follower] = []

    def make(**options: str) -> Follower:
        given = {"url": postgres.url, "keyColumn": "id", **options}
        followers.append(Follower(given))
        return followers[-1]

    yield make
    for follower in followers:
        follower.close()


def _await_end(postgres: LocalPostgres, pids: list[int]) -> None:
    """A session that was closed may be open on the server for a moment, and hold its horizon."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for _ in range(1000):
            gone = connection.execute(
                "SELECT count(*) = 0, pg_sleep(0.01) FROM pg_stat_activity WHERE pid = ANY(%s)",
                [pids],
            ).fetchone()
            if gone is not None and gone[0]:
                return
    raise AssertionError("sessions of the test did not end")
