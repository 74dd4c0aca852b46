"""Rows that are committed out of order, in a real PostgreSQL: each is read once, whatever the pace.

`Writers` runs several transactions at once, in one thread and from a seed, so that a failure is
repeated exactly. It counts the rows that a reader by the greatest key could have lost, to show that
these histories have them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ingest.following import Follower

Connect = Callable[[], psycopg.Connection[Any]]
Follow = Callable[..., Follower]

COLUMN = "txid xid8 NOT NULL DEFAULT pg_current_xact_id()"
WAYS = {
    "row versions": {},
    "recent keys": {"keyLag": "1000"},
    "column": {"transactionColumn": "txid"},
    "update time": {"updateColumn": "changed"},
}


class Writers:
    """Transactions that begin, write, use savepoints, are prepared, and end, at random."""

    def __init__(self, connect: Connect, table: str, random_: random.Random) -> None:
        self._random = random_
        self._table = table
        self._free = [connect() for _ in range(5)]
        self._open: dict[psycopg.Connection[Any], set[int]] = {}
        self._drawn: dict[psycopg.Connection[Any], int] = {}
        self._prepared: dict[str, set[int]] = {}
        self._control = connect()
        self._control.autocommit = True
        self.committed: set[int] = set()
        self.late = 0
        """Rows that were committed when a greater key could be seen already."""

    def act(self) -> None:
        action = self._random.choices(
            [self._begin, self._write, self._draw, self._undo_part, self._end, self._prepare],
            [3, 6, 1, 2, 3, 1],
        )[0]
        action()

    def change(self) -> None:
        """A row that nobody else has under way."""
        if connection := self._any_open():
            connection.execute(
                f"UPDATE {self._table} SET version = version + 1, changed = clock_timestamp() "
                f"WHERE id = (SELECT id FROM {self._table} ORDER BY md5(id::text || %s) "
                "LIMIT 1 FOR UPDATE SKIP LOCKED)",
                [str(self._random.random())],
            )

    def finish(self) -> None:
        while self._open:
            self._end()
        for name in list(self._prepared):
            self._end_prepared(name)

    def _begin(self) -> None:
        if self._free:
            connection = self._free.pop(self._random.randrange(len(self._free)))
            self._open[connection] = set()
            # Some take their number long before they write.
            if self._random.random() < 0.3:
                connection.execute("SELECT pg_current_xact_id()")

    def _write(self) -> None:
        if connection := self._any_open():
            key = self._drawn.pop(connection, None) or self._next_key(connection)
            connection.execute(f"INSERT INTO {self._table} (id) VALUES (%s)", [key])
            self._open[connection].add(key)

    def _draw(self) -> None:
        """A key is drawn now and used later, in whichever transaction the session has then."""
        connection = self._random.choice([*self._open, *self._free])
        if connection not in self._drawn:
            self._drawn[connection] = self._next_key(self._control)

    def _undo_part(self) -> None:
        if connection := self._any_open():
            connection.execute("SAVEPOINT s")
            key = self._next_key(connection)
            connection.execute(f"INSERT INTO {self._table} (id) VALUES (%s)", [key])
            if self._random.random() < 0.5:
                connection.execute("ROLLBACK TO SAVEPOINT s")
            else:
                connection.execute("RELEASE SAVEPOINT s")
                self._open[connection].add(key)

    def _end(self) -> None:
        if connection := self._any_open():
            keys = self._open.pop(connection)
            self._free.append(connection)
            if self._random.random() < 0.25:
                connection.rollback()
            else:
                connection.commit()
                self._note(keys)

    def _prepare(self) -> None:
        if self._prepared and self._random.random() < 0.5:
            self._end_prepared(self._random.choice(list(self._prepared)))
        elif connection := self._any_open():
            name = f"p{self._random.randrange(2**40)}"
            connection.execute(f"PREPARE TRANSACTION '{name}'")
            connection.commit()
            self._prepared[name] = self._open.pop(connection)
            self._free.append(connection)

    def _end_prepared(self, name: str) -> None:
        keys = self._prepared.pop(name)
        verdict = self._random.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        self._control.execute(f"{verdict} PREPARED '{name}'".encode())
        self._note(keys if verdict == "COMMIT" else set())

    def _note(self, keys: set[int]) -> None:
        self.late += sum(key < max(self.committed, default=0) for key in keys)
        self.committed |= keys

    def _any_open(self) -> psycopg.Connection[Any] | None:
        return self._random.choice(list(self._open)) if self._open else None

    def _next_key(self, connection: psycopg.Connection[Any]) -> int:
        row = connection.execute(
            f"SELECT nextval(pg_get_serial_sequence('{self._table}', 'id'))"
        ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("round_", range(3))
def test_every_committed_row_is_read_once(
    connect: Connect, follow: Follow, table: str, way: str, round_: int, seed: int
) -> None:
    random_ = random.Random(f"{seed} {way} {round_}")
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigserial PRIMARY KEY, {COLUMN}, "
            "changed timestamptz NOT NULL DEFAULT now(), version int DEFAULT 0)"
        )
    writers = Writers(connect, table, random_)
    follower = follow(dbtable=table, **WAYS[way])
    for _ in range(200):
        writers.act()
        if random_.random() < 0.2:
            follower.step(random_.choice([None, 1, 2, 5]), follower.table.newest())
        if random_.random() < 0.05:
            follower.reopen()
    writers.finish()
    follower.drain(random_.choice([None, 1, 3]))
    assert sorted(follower.keys) == sorted(writers.committed)
    for start, end, rows in follower.batches:
        assert follower.read(start, end) == rows  # as if Spark ran it again, now


def test_these_histories_have_rows_that_are_committed_out_of_order(
    connect: Connect, table: str, seed: int
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
    writers = Writers(connect, table, random.Random(seed))
    for _ in range(1000):
        writers.act()
    writers.finish()
    assert writers.late > 20


@pytest.mark.parametrize("way", ["row versions", "update time"])
@pytest.mark.parametrize("round_", range(2))
def test_rows_that_are_changed_are_read_in_their_last_form(
    connect: Connect, follow: Follow, table: str, way: str, round_: int, seed: int
) -> None:
    random_ = random.Random(f"{seed} {way} {round_} changed")
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigserial PRIMARY KEY, "
            "changed timestamptz NOT NULL DEFAULT now(), version int DEFAULT 0)"
        )
    writers = Writers(connect, table, random_)
    follower = follow(dbtable=table, **WAYS[way])
    for _ in range(200):
        random_.choice([writers.act, writers.change])()
        if random_.random() < 0.15:
            follower.step(random_.choice([None, 1, 3]), follower.table.newest())
    writers.finish()
    follower.drain()
    with connect() as connection:
        last = dict(connection.execute(f"SELECT id, version FROM {table}").fetchall())
    assert last.keys() == writers.committed and max(last.values()) > 0
    read = [(row["id"], row["version"]) for row in follower.all_rows]
    assert dict(read) == last  # of each row, what came last
    assert len(set(read)) == len(read)  # and nothing twice


def test_a_reader_by_the_greatest_key_would_lose_what_this_one_reads(
    connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
    naive, greatest = connect(), 0
    naive.autocommit = True
    by_key: list[int] = []
    follower = follow(dbtable=table)
    first, second = connect(), connect()
    for connection in (first, second):
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    for connection in (second, first):
        connection.commit()
        rows = naive.execute(f"SELECT id FROM {table} WHERE id > %s", [greatest]).fetchall()
        by_key += [key for (key,) in rows]
        greatest = max([greatest, *by_key])
        follower.drain()
    assert by_key == [2]
    assert follower.keys == [1, 2]


def test_a_prepared_transaction_holds_the_horizon(
    connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, v text)")
    follower = follow(dbtable=table)
    early, late = connect(), connect()
    early.execute(f"INSERT INTO {table} (v) VALUES ('early')")
    late.execute(f"INSERT INTO {table} (v) VALUES ('late')")
    early.execute(f"PREPARE TRANSACTION '{table}'")
    early.commit()
    late.commit()
    assert follower.drain() == []
    early.autocommit = True
    early.execute(f"COMMIT PREPARED '{table}'".encode())
    assert [row["v"] for row in follower.drain()] == ["early", "late"]


def test_a_transaction_that_writes_elsewhere_only_delays(
    connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    follower = follow(dbtable=table)
    other = connect()
    other.execute("SELECT pg_current_xact_id()")
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    assert [row["id"] for row in follower.drain()] == [1]
    other.rollback()
    assert [row["id"] for row in follower.drain()] == [2]


def test_an_effect_does_not_come_before_its_cause(
    connect: Connect, follow: Follow, table: str
) -> None:
    """The later row's transaction has the smaller number, and one between them is still open."""
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, value text)")
    follower = follow(dbtable=table, outbox="true")
    effect, long, cause = connect(), connect(), connect()
    for connection in (effect, long, cause):  # in this order they get their numbers
        connection.execute("SELECT pg_current_xact_id()")
    cause.execute(f"INSERT INTO {table} (value) VALUES ('cause')")
    cause.commit()
    effect.execute(f"INSERT INTO {table} (value) SELECT 'effect of ' || value FROM {table}")
    effect.commit()
    assert follower.drain() == []
    long.commit()
    assert [row["value"] for row in follower.drain(rows_max=1)] == ["cause", "effect of cause"]
