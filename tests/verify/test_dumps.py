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
        self.hindered: list[str] = []
        self.errors: list[Exception] = []

    def begin(self, server: Server) -> None:
        server.dumps.begin(self.passed.set, self.hindered.append, self.errors.append)


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
    assert (told.hindered, told.errors) == ([], [])


@pytest.mark.slow
def test_a_dump_that_fails_is_told_of(postgres: LocalPostgres, postgres_schema: str) -> None:
    """As it does where tables come and go."""
    server, told = Server(postgres), Told()
    told.begin(server)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for number in range(20_000):
            connection.execute(f"CREATE TABLE {postgres_schema}.stage (id bigint)")
            connection.execute(f"DROP TABLE {postgres_schema}.stage")
            if told.hindered:
                break
            if number % 50 == 0 and not server.dumps.are_under_way():
                told.begin(server)
    server.settle()
    assert told.hindered and "pg_dump" in told.hindered[0]
    assert told.errors == []


def test_a_dump_that_waits_behind_a_pipeline_is_told_of(
    postgres: LocalPostgres, postgres_schema: str
) -> None:
    """Somebody who waits to drop a table lets nobody pass that comes later."""
    beside(postgres, lambda c: c.execute(f"CREATE TABLE {postgres_schema}.stage (id bigint)"))
    server, told = Server(postgres), Told()
    with psycopg.connect(postgres.url) as connection:
        connection.execute(f"LOCK TABLE {postgres_schema}.stage IN ACCESS EXCLUSIVE MODE")
        told.begin(server)
        connection.rollback()
    server.settle()
    assert told.hindered and "lock timeout" in told.hindered[0]


def test_a_deadlock_is_told_with_the_trial_that_it_is_of(
    postgres: LocalPostgres, postgres_schema: str
) -> None:
    table = f"{postgres_schema}.output_verify_t17"
    beside(postgres, lambda c: c.execute(f"CREATE TABLE {table} AS SELECT 1 AS id UNION SELECT 2"))
    server, other = Server(postgres), Server(postgres)
    meet = threading.Barrier(2)
    deadlocks: list[Exception] = []

    def run(keys: tuple[int, int]) -> None:
        try:
            with psycopg.connect(postgres.url) as connection:
                for key in keys:
                    connection.execute(f"UPDATE {table} SET id = id WHERE id = {key}")
                    if key == keys[0]:
                        meet.wait(WAITED_S)
        except psycopg.errors.DeadlockDetected as error:
            deadlocks.append(error)

    threads = [threading.Thread(target=run, args=(keys,)) for keys in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(deadlocks) == 1
    ((trial, said),) = server.deadlocks()
    assert trial == 17 and said.startswith("deadlock detected") and "UPDATE" in said
    assert len(other.deadlocks()) == 1
    assert Server(postgres).deadlocks() == [], "it was before"


def test_a_dump_is_not_to_blame_for_a_server_that_dies() -> None:
    with LocalPostgres() as postgres:
        server, told = Server(postgres), Told()
        told.begin(server)
        assert told.passed.wait(WAITED_S)
        server.disturb("kill")
        server.settle()
        assert (told.hindered, told.errors) == ([], [])
        told.passed.clear()
        told.begin(server)
        assert told.passed.wait(WAITED_S)
        server.settle()
        assert (told.hindered, told.errors) == ([], [])
