"""Tables of real DuckDB files: types, order, a writer in another process, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ingest.following import Follower, read_all
from sparkonce.errors import ConfigError
from sparkonce.ingest import duckdb as engine_module
from sparkonce.ingest.source import TableSource
from sparkonce.ingest.table import SourceError

Follow = Callable[..., Follower]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.duckdb"


@pytest.fixture
def run(file: Path) -> Callable[..., list[tuple[Any, ...]]]:
    """Opens the file, runs statements, and gives it back: as its writers have to."""

    def run_all(*statements: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(file)) as connection:
            for statement in statements:
                connection.execute(statement)
            return connection.fetchall()

    return run_all


@pytest.fixture
def follow(file: Path) -> Follow:
    def make(**options: str) -> Follower:
        return Follower({**_plain(file), **options})

    return make


def _plain(file: Path) -> dict[str, str]:
    return {"url": f"duckdb://{file}", "dbtable": "t", "keyColumn": "id"}


def test_rows_come_once_and_in_order(run: Any, follow: Follow) -> None:
    run("CREATE SEQUENCE s", "CREATE TABLE t (id BIGINT PRIMARY KEY DEFAULT nextval('s'), v INT)")
    follower = follow(fetchsize="3")
    for rows in (5, 1, 20):
        run(f"INSERT INTO t (v) SELECT 1 FROM range({rows})")
        follower.step(4)
    follower.drain(7)
    assert follower.keys == list(range(1, 27))
    assert [len(rows) for _, _, rows in follower.batches] == [4, 2, 4, 7, 7, 2]
    for start, end, rows in follower.batches:
        assert follower.read(start, end) == rows


def test_commits_out_of_order_are_over_when_the_file_can_be_read(
    file: Path, follow: Follow, run: Any
) -> None:
    """Two transactions of one process; nobody else sees the file before both have ended."""
    run("CREATE SEQUENCE s", "CREATE TABLE t (id BIGINT PRIMARY KEY DEFAULT nextval('s'), v INT)")
    writer = f"""
import duckdb, sys
one = duckdb.connect({str(file)!r})
two = one.cursor()
for each in (one, two):
    each.execute("BEGIN")
    each.execute("INSERT INTO t (v) VALUES (1)")
two.execute("COMMIT")
print("ready", flush=True)
sys.stdin.readline()
one.execute("COMMIT")
"""
    follower = follow()
    process = subprocess.Popen(
        [sys.executable, "-c", writer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_module, "_PATIENCE_S", 0.0)
            with pytest.raises(SourceError, match="must close it now and then"):
                follower.step()
        process.stdin.write("\n")
        process.stdin.flush()
        assert [row["id"] for row in follower.drain()] == [1, 2]


TYPES: list[tuple[str, str, str, Any]] = [
    ("TINYINT", "-5", "tinyint", -5),
    ("INTEGER", "5", "int", 5),
    ("BIGINT", "5", "bigint", 5),
    ("UTINYINT", "255", "smallint", 255),
    ("UINTEGER", "4294967295", "bigint", 4294967295),
    ("UBIGINT", "18446744073709551615", "decimal(20,0)", Decimal(18446744073709551615)),
    ("HUGEINT", "-12345678901234567890", "decimal(38,0)", Decimal(-12345678901234567890)),
    ("DECIMAL(20,3)", "1.5", "decimal(20,3)", Decimal("1.500")),
    ("FLOAT", "1.5", "float", 1.5),
    ("DOUBLE", "0.1", "double", 0.1),
    ("BOOLEAN", "true", "boolean", True),
    ("VARCHAR", "'ä'", "string", "ä"),
    ("JSON", "'{\"a\": 1}'", "string", '{"a": 1}'),
    ("UUID", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "string",
     "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("ENUM ('a', 'b')", "'b'", "string", "b"),
    ("BLOB", r"'\x00\xff'::BLOB", "binary", b"\x00\xff"),
    ("DATE", "'2026-01-02'", "date", date(2026, 1, 2)),
    ("TIME", "'03:04:05'", "string", "03:04:05"),
    ("INTERVAL", "INTERVAL 1 DAY", "string", "1 day"),
    ("TIMESTAMP", "'2026-01-02 03:04:05.678901'", "timestamp_ntz",
     datetime(2026, 1, 2, 3, 4, 5, 678901)),
    ("TIMESTAMP_MS", "'2026-01-02 03:04:05.678'", "timestamp_ntz",
     datetime(2026, 1, 2, 3, 4, 5, 678000)),
    ("TIMESTAMPTZ", "'2026-01-02 03:04:05+02'", "timestamp",
     datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
    ("INTEGER[]", "[1, NULL]", "array<int>", [1, None]),
    ("UTINYINT[2]", "[1, 2]", "array<smallint>", [1, 2]),
    ("STRUCT(a INTEGER, b VARCHAR)", "{'a': 1, 'b': 'x'}", "struct<a:int,b:string>",
     {"a": 1, "b": "x"}),
    ("MAP(VARCHAR, UINTEGER)", "MAP {'k': 1}", "map<string,bigint>", [("k", 1)]),
]  # fmt: skip


def test_every_type_arrives_with_its_value(run: Any, file: Path) -> None:
    declared = ", ".join(f"c{index} {kind}" for index, (kind, *_) in enumerate(TYPES))
    values = ", ".join(value for _, value, *_ in TYPES)
    run(
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, {declared})",
        f"INSERT INTO t VALUES (1, {values})",
        "INSERT INTO t (id) VALUES (2)",
    )
    schema = TableSource(_plain(file)).schema()
    assert [field.dataType.simpleString() for field in schema[1:]] == [each[2] for each in TYPES]
    full, empty = read_all(_plain(file))
    assert [full[f"c{index}"] for index in range(len(TYPES))] == [value for *_, value in TYPES]
    assert all(empty[f"c{index}"] is None for index in range(len(TYPES)))


def test_rows_that_are_changed_come_again_once_their_time_is_old_enough(
    run: Any, follow: Follow
) -> None:
    run("CREATE TABLE t (id INTEGER PRIMARY KEY, changed TIMESTAMPTZ NOT NULL)")
    change = "INSERT OR REPLACE INTO t VALUES ({}, now() - INTERVAL '{}')".format
    run(*(change(key, "2 hours") for key in (1, 2, 3)))
    follower = follow(updateColumn="changed", updateDelayMs="60000")
    follower.drain(2)
    run(change(3, "50 minutes"), change(1, "40 minutes"), change(2, "0 minutes"))
    assert [row["id"] for row in follower.drain()] == [3, 1]
    at_once = follow(updateColumn="changed", updateDelayMs="0")
    assert [row["id"] for row in at_once.drain()] == [3, 1, 2]


@pytest.mark.parametrize("column", ["id", "moment", "day"])
def test_parts_are_the_same_batch(run: Any, follow: Follow, column: str) -> None:
    run(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, moment TIMESTAMPTZ, day DATE)",
        "INSERT INTO t SELECT i, now() + to_hours(i), current_date + i::INT FROM range(1, 99) r(i)",
        "INSERT INTO t (id) VALUES (99)",
    )
    follower = follow(numPartitions="3", partitionColumn=column)
    follower.drain()
    assert sorted(follower.keys) == list(range(1, 100))


def test_what_was_given_out_is_deleted(run: Any, follow: Follow) -> None:
    run(
        "CREATE SEQUENCE s",
        "CREATE TABLE t (id BIGINT PRIMARY KEY DEFAULT nextval('s'), value TEXT)",
    )
    follower = follow(outbox="true", deleteAfterPublishing="true")
    for _ in range(3):
        run("INSERT INTO t (value) VALUES ('a'), ('b')")
        follower.step(1)
        follower.delete()
    assert run("SELECT id FROM t ORDER BY id") == [(4,), (5,), (6,)]
    follower.drain()
    follower.delete()
    assert follower.keys == [1, 2, 3, 4, 5, 6]
    assert run("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (["CREATE TABLE t (id BIGINT NOT NULL)"], "is not unique"),
        (["CREATE TABLE t (id BIGINT UNIQUE)"], "may be null"),
        (["CREATE TABLE t (id DOUBLE PRIMARY KEY)"], "gives no order"),
        (["CREATE TABLE t (id INT PRIMARY KEY, u UNION(a INT, b TEXT))"], "'u' is of type UNION"),
        (["CREATE TABLE other (id INT)"], "no table in"),
    ],
)
def test_what_would_lose_rows_is_refused_early(
    run: Any, file: Path, statements: list[str], told: str
) -> None:
    run(*statements)
    with pytest.raises(ConfigError, match=told):
        TableSource(_plain(file)).schema()


def test_a_unique_index_and_a_schema_do_as_well(run: Any, follow: Follow) -> None:
    run(
        "CREATE SCHEMA other",
        'CREATE TABLE other."T 1" ("The Id" VARCHAR NOT NULL)',
        'CREATE UNIQUE INDEX i ON other."T 1" ("The Id")',
        """INSERT INTO other."T 1" VALUES ('b'), ('a''')""",
    )
    follower = follow(dbtable='other."T 1"', keyColumn="the id")
    assert [row["The Id"] for row in follower.drain(1)] == ["a'", "b"]


def test_settings_of_duckdb_may_follow_the_path(run: Any, file: Path) -> None:
    run("CREATE TABLE t (id INT PRIMARY KEY)")
    source = {**_plain(file), "url": f"duckdb://{file}?no_such_setting=1"}
    with pytest.raises(SourceError, match="no_such_setting"):
        TableSource(source).schema()
    assert TableSource({**source, "url": f"duckdb://{file}?memory_limit=1GB"}).schema()
