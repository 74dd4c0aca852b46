"""Dumps beside a pipeline: what they hold, and what is told of those that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from sparkonce.local import LocalPostgres
from sparkonce.verify.disturb import Server

WAITED_S = 60.0


class Told:
    def __init__(self) -> None:
        self.passed = threading.Event()
        self.errors: list[Exception] = []

    def begin(self, server: Server) -> None:
        server.dumps.begin(self.passed.set, self.errors.append)


def beside(server: LocalPostgres, action: Callable[[psycopg.Connection], None]) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        action(connection)


def test_tables_stay_locked_until_it_is_settled(
    postgres: LocalPostgres, postgres_schema: str
) -> None:
    beside(postgres, lambda c: c.execute(f"CREATE TABLE {postgres_schema}.target (id bigint)"))
    server, told = Server(postgres), Told()
    told.begin(server)
    with psycopg.connect(postgres.url) as connection:
        connection.execute("SET lock_timeout = '100ms'")
        connection.execute(f"INSERT INTO {postgres_schema}.target VALUES (1)")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(f"DROP TABLE {postgres_schema}.target")
    assert told.passed.wait(WAITED_S)
    server.settle()
    beside(postgres, lambda c: c.execute(f"DROP TABLE {postgres_schema}.target"))
    assert told.errors == []


@pytest.mark.slow
def test_a_dump_that_fails_is_told_of(postgres: LocalPostgres, postgres_schema: str) -> None:
    """As it does where tables come and go."""
    server, told = Server(postgres), Told()
    told.begin(server)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for number in range(20_000):
            connection.execute(f"CREATE TABLE {postgres_schema}.stage (id bigint)")
            connection.execute(f"DROP TABLE {postgres_schema}.stage")
            if told.errors:
                break
            if number % 50 == 0 and not server.dumps.are_under_way():
                told.begin(server)
    server.settle()
    assert told.errors and "pg_dump" in str(told.errors[0])


def test_a_dump_is_not_to_blame_for_a_server_that_dies() -> None:
    with LocalPostgres() as postgres:
        server, told = Server(postgres), Told()
        told.begin(server)
        assert told.passed.wait(WAITED_S)
        server.disturb("kill")
        server.settle()
        assert told.errors == []
        told.passed.clear()
        told.begin(server)
        assert told.passed.wait(WAITED_S)
        server.settle()
        assert told.errors == []
