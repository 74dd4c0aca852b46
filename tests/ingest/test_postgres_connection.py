"""How a PostgreSQL is spoken to: in its databases' encodings, and through poolers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from ingest.following import Follower
from pooler import Pooler
from sparkonce.ingest.table import SourceError
from sparkonce.local.postgres import LocalPostgres

Connect = Callable[[], psycopg.Connection[Any]]
Follow = Callable[..., Follower]


@contextmanager
def database(postgres: LocalPostgres, name: str, encoding: str) -> Iterator[str]:
    with closing(psycopg.connect(postgres.url, autocommit=True)) as control:
        control.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' "
            "TEMPLATE template0".encode()
        )
        yield postgres.url.rsplit("/", 1)[0] + f"/{name}"
        control.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1252", "SQL_ASCII", "EUC_JP"])
def test_text_is_the_same_in_every_encoding(
    postgres: LocalPostgres, follow: Follow, table: str, encoding: str
) -> None:
    """In values, and in keys, which positions are made of."""
    first, second = ("é", "ü") if encoding != "EUC_JP" else ("犬", "猫")
    with (
        database(postgres, table, encoding) as url,
        closing(psycopg.connect(url, autocommit=True, client_encoding="UTF8")) as writer,
    ):
        writer.execute("CREATE TABLE t (id text PRIMARY KEY, words text[], doc json)")
        insert = "INSERT INTO t VALUES (%s, %s, to_json(%s::text))"
        writer.execute(insert, [first, [first, second], second])
        follower = follow(url=url, dbtable="t")
        assert follower.drain() == [
            {"id": first, "words": [first, second], "doc": f'"{second}"'},
        ]
        writer.execute(insert, ["a", [], "a"])
        writer.execute(insert, [second, [second], first])
        follower.reopen()
        assert sorted(row["id"] for row in follower.drain(1)) == sorted(["a", second])
        for start, end, rows in follower.batches:
            assert follower.read(start, end) == rows
        follower.close()


def test_bytes_that_are_no_text_are_not_handed_out(
    postgres: LocalPostgres, follow: Follow, table: str
) -> None:
    with (
        database(postgres, table, "SQL_ASCII") as url,
        closing(psycopg.connect(url, autocommit=True)) as writer,
    ):
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        writer.execute(b"INSERT INTO t VALUES (1, '\xe9')")
        follower = follow(url=url, dbtable="t")
        with pytest.raises(SourceError, match=r"0xe9.*encoding SQL_ASCII.*correct the row"):
            follower.drain()
        follower.close()


def test_a_connection_begins_with_nothing_that_a_pooler_refuses(
    postgres: LocalPostgres, connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    with Pooler(postgres.port) as pooler:
        follower = follow(dbtable=table, url=pooler.before(postgres.url))
        assert [row["id"] for row in follower.drain()] == [1]
        follower.close()
    assert len(pooler.startups) >= 2  # the driver's and a task's
    assert not pooler.refused


def test_a_session_is_left_as_it_was(connect: Connect, follow: Follow, table: str) -> None:
    """Behind a pooler it is somebody else's next."""
    settings = "SELECT name, setting FROM pg_settings WHERE source = 'session'"
    prepared = "SELECT name FROM pg_prepared_statements"
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id timestamptz PRIMARY KEY)")
        connection.execute(f"INSERT INTO {table} VALUES ('2026-01-02 03:04:05+02')")
    follower = follow(dbtable=table)
    desk = follower.table._desk
    desk.ask(lambda c: c.execute("SET DateStyle = 'SQL, DMY'"))  # as another user of it might
    for _ in range(10):
        follower.drain()
    assert '"2026-01-02 01:04:05+00"' in follower.offset
    assert desk.ask(lambda c: c.execute(settings).fetchall()) == [("DateStyle", "SQL, DMY")]
    assert desk.ask(lambda c: c.execute(prepared).fetchall()) == []
