"""Tables of real SQLite files: types, order, a writer beside the reader, and what is refused."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingest.following import Follower, read_all
from sparkonce.errors import ConfigError
from sparkonce.ingest.source import TableSource
from sparkonce.ingest.table import SourceError

Follow = Callable[..., Follower]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "with space.db"


@pytest.fixture(params=["wal", "delete"])
def writer(file: Path, request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {request.param}")
        yield connection


@pytest.fixture
def follow(file: Path) -> Follow:
    def make(**options: str) -> Follower:
        return Follower({**_plain(file), **options})

    return make


def _plain(file: Path) -> dict[str, str]:
    return {"url": f"sqlite://{file}", "dbtable": "t", "keyColumn": "id"}


def test_rows_come_once_and_in_order_whatever_the_pace(
    writer: sqlite3.Connection, follow: Follow, seed: int
) -> None:
    random_ = random.Random(seed)
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
    follower = follow(fetchsize="7")
    for _ in range(60):
        writer.execute("BEGIN")
        for _ in range(random_.randrange(20)):
            writer.execute("INSERT INTO t (v) VALUES ('v')")
        if random_.random() < 0.3:
            # In the middle of a transaction: what it wrote is not there, or is waited for.
            if _is_wal(writer):
                follower.step(random_.choice([None, 1, 10]))
            writer.execute("ROLLBACK")
        else:
            writer.execute("COMMIT")
        if random_.random() < 0.5:
            follower.step(random_.choice([None, 1, 10, 30]))
    follower.drain(13)
    expected = [key for (key,) in writer.execute("SELECT id FROM t ORDER BY id")]
    assert follower.keys == expected and len(expected) > 200
    for start, end, rows in follower.batches:
        assert follower.read(start, end) == rows


def _is_wal(writer: sqlite3.Connection) -> bool:
    return writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_writer_does_not_wait_for_a_reader_that_is_slow(
    writer: sqlite3.Connection, follow: Follow
) -> None:
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    writer.executemany("INSERT INTO t VALUES (?)", [(key,) for key in range(100)])
    follower = follow(fetchsize="10")
    start = follower.table.start(latest=False)
    end = follower.table.advance(start, None)
    assert end is not None
    (span,) = follower.table.spans(start, end)
    reading = follower.table.read(start, end, span, follower.table.columns())
    first = next(reading)
    writer.execute("PRAGMA busy_timeout = 0")
    writer.execute("INSERT INTO t VALUES (100)")
    rows = pa.Table.from_batches([first, *reading])
    assert rows.column("id").to_pylist() == list(range(100))


TYPES: list[tuple[str, Any, str, Any]] = [
    ("INTEGER", -5, "bigint", -5),
    ("BIGINT", 2**62, "bigint", 2**62),
    ("REAL", 1, "double", 1.0),
    ("DOUBLE PRECISION", 0.5, "double", 0.5),
    ("VARCHAR(10)", "ä", "string", "ä"),
    ("TEXT", "t", "string", "t"),
    ("JSON", '{"a": 1}', "string", '{"a": 1}'),
    ("BLOB", b"\x00\xff", "binary", b"\x00\xff"),
    ("BOOLEAN", 1, "boolean", True),
    ("DECIMAL(10,2)", 1.25, "decimal(10,2)", Decimal("1.25")),
    ("NUMERIC(20)", 12, "decimal(20,0)", Decimal(12)),
    ("DATE", "2026-01-02", "date", date(2026, 1, 2)),
    ("DATETIME", "2026-01-02 03:04:05", "timestamp_ntz", datetime(2026, 1, 2, 3, 4, 5)),
    ("TIMESTAMP", "2026-01-02T03:04:05.5+01:00", "timestamp_ntz",
     datetime(2026, 1, 2, 2, 4, 5, 500000)),
]  # fmt: skip


def test_every_type_arrives_with_its_value(writer: sqlite3.Connection, file: Path) -> None:
    declared = ", ".join(f"c{index} {kind}" for index, (kind, *_) in enumerate(TYPES))
    writer.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, {declared})")
    values = [value for _, value, *_ in TYPES]
    writer.execute(f"INSERT INTO t VALUES (1{', ?' * len(values)})", values)
    writer.execute("INSERT INTO t (id) VALUES (2)")
    schema = TableSource(_plain(file)).schema()
    assert [field.dataType.simpleString() for field in schema[1:]] == [each[2] for each in TYPES]
    full, empty = Follower(_plain(file)).drain()
    assert [full[f"c{index}"] for index in range(len(TYPES))] == [value for *_, value in TYPES]
    assert all(empty[f"c{index}"] is None for index in range(len(TYPES)))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("INTEGER", "text"),
        ("INTEGER", 1.5),
        ("BOOLEAN", 2),
        ("DATE", "yesterday"),
        ("DATETIME", 1700000000),
        ("DECIMAL(4,2)", "1.234"),
        ("DECIMAL(4,2)", "text"),
        ("TEXT", b"bytes"),
    ],
)
def test_a_value_that_is_not_of_its_columns_type_fails_loudly(
    writer: sqlite3.Connection, file: Path, kind: str, value: Any
) -> None:
    writer.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {kind})")
    writer.execute("INSERT INTO t VALUES (1, ?)", [value])
    with pytest.raises(SourceError, match=r"t, the row with id=1: column 'v' has the value"):
        read_all(_plain(file))


def test_rows_that_are_changed_come_again_once_their_time_is_old_enough(
    writer: sqlite3.Connection, follow: Follow
) -> None:
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, changed DATETIME NOT NULL)")
    change = "INSERT OR REPLACE INTO t VALUES (?, datetime('now', ?))"
    for key in (1, 2, 3):
        writer.execute(change, [key, "-2 hours"])
    follower = follow(updateColumn="changed", updateDelayMs="60000")
    assert [row["id"] for row in follower.drain(2)] == [1, 2, 3]
    writer.execute(change, [3, "-50 minutes"])
    writer.execute(change, [1, "-40 minutes"])
    # Another row may still get this very second as its time, and a smaller key: not yet.
    writer.execute(change, [2, "-0 seconds"])
    assert [row["id"] for row in follower.drain()] == [3, 1]
    at_once = follow(updateColumn="changed", updateDelayMs="0")
    assert [row["id"] for row in at_once.drain()] == [3, 1, 2]


def test_a_counter_of_changes_needs_no_delay(writer: sqlite3.Connection, follow: Follow) -> None:
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, version INTEGER NOT NULL)")
    writer.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    follower = follow(updateColumn="version")
    assert [row["id"] for row in follower.drain()] == [1, 2]
    writer.execute("UPDATE t SET version = 3 WHERE id = 1")
    assert [row["id"] for row in follower.drain()] == [1]


def test_keys_of_text_and_a_start_with_rows_to_come(
    writer: sqlite3.Connection, follow: Follow
) -> None:
    writer.execute("CREATE TABLE t (id TEXT NOT NULL UNIQUE)")
    writer.execute("INSERT INTO t VALUES ('a''1'), ('a2')")
    follower = follow(startingOffsets="latest")
    writer.execute("INSERT INTO t VALUES ('b'), ('c')")
    assert [row["id"] for row in follower.drain()] == ["b", "c"]


def test_parts_are_the_same_batch(writer: sqlite3.Connection, follow: Follow) -> None:
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, customer INT)")
    writer.executemany("INSERT INTO t VALUES (?, ?)", [(k, k % 9 or None) for k in range(1, 99)])
    follower = follow(numPartitions="3", partitionColumn="customer")
    follower.drain()
    assert sorted(follower.keys) == list(range(1, 99))


def test_what_was_given_out_is_deleted(writer: sqlite3.Connection, follow: Follow) -> None:
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, value BLOB)")
    follower = follow(outbox="true", deleteAfterPublishing="true")
    for _ in range(3):
        writer.execute("INSERT INTO t (value) VALUES ('a'), ('b')")
        follower.step(1)
        follower.delete()
    assert writer.execute("SELECT id FROM t").fetchall() == [(4,), (5,), (6,)]
    follower.drain()
    follower.delete()
    assert follower.keys == [1, 2, 3, 4, 5, 6]
    assert writer.execute("SELECT id FROM t").fetchall() == []


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("id INTEGER PRIMARY KEY, value TEXT", {"deleteAfterPublishing": "true"}, "AUTOINCREMENT"),
        ("id INTEGER NOT NULL, value TEXT", {}, "is not unique"),
        ("id INTEGER UNIQUE, value TEXT", {}, "may be null"),
        ("id REAL PRIMARY KEY NOT NULL, value TEXT", {}, "gives no order"),
        ("id INTEGER, value TEXT, PRIMARY KEY (id, value)", {"keyColumn": "value"}, "null"),
        ("id INTEGER PRIMARY KEY, value TEXT", {"updateColumn": "value"}, "may be null"),
        ("id INTEGER PRIMARY KEY, value TEXT", {"numPartitions": "2",
         "partitionColumn": "value"}, "partitionColumn='value'"),
        ("id INTEGER PRIMARY KEY, value TEXT", {"dbtable": "nope"}, "no table in"),
    ],
)  # fmt: skip
def test_what_would_lose_rows_is_refused_early(
    writer: sqlite3.Connection, file: Path, columns: str, options: dict[str, str], told: str
) -> None:
    writer.execute(f"CREATE TABLE t ({columns})")
    with pytest.raises(ConfigError, match=told):
        TableSource({**_plain(file), "outbox": "true", **options}).schema()


def test_a_column_without_a_type_is_refused(writer: sqlite3.Connection, file: Path) -> None:
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, anything)")
    with pytest.raises(ConfigError, match="'anything' is of type none"):
        TableSource(_plain(file)).schema()


def test_a_file_that_is_not_there_is_not_made(file: Path) -> None:
    with pytest.raises(SourceError, match="can't be opened"):
        TableSource(_plain(file)).schema()
    assert not file.exists()
