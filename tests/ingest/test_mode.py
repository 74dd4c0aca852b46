"""`mode`: values that Spark can't have, in FAILFAST and PERMISSIVE, from each database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, IntegerType, StructType

from ingest.following import read_all
from sparkonce.errors import ConfigError
from sparkonce.ingest.source import TableSource
from sparkonce.ingest.table import SourceError
from sparkonce.local.postgres import LocalPostgres

Connect = Callable[[], psycopg.Connection[Any]]
PERMISSIVE = {"mode": "PERMISSIVE"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def sqlite_table(file: Path, *statements: str) -> dict[str, str]:
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        for statement in statements:
            writer.execute(statement)
    return {"url": f"sqlite://{file}", "dbtable": "t", "keyColumn": "id"}


def duckdb_table(file: Path, *statements: str) -> dict[str, str]:
    with duckdb.connect(str(file)) as writer:
        for statement in statements:
            writer.execute(statement)
    return {"url": f"duckdb://{file}", "dbtable": "t", "keyColumn": "id"}


def test_postgres_puts_rows_aside(postgres: LocalPostgres, connect: Connect, table: str) -> None:
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, day date, at timestamptz, n numeric, "
            "list numeric[], days date[], note text)"
        )
        connection.execute(
            f"""INSERT INTO {table} VALUES
            (1, '2026-01-02', '2026-01-02 00:00+00', 1.5, '{{1.5}}', '{{2026-01-02}}', 'as it is'),
            (2, 'infinity', '-infinity', 'NaN', '{{1e30}}', '{{infinity}}', 'ä'),
            (3, '2026-01-02', '294270-01-01 00:00+00', 1e30, '{{{{1}},{{2}}}}', NULL, NULL),
            (4, NULL, NULL, 1e-19, '{{1,NULL}}', '{{NULL}}', 'only a number')""".encode()
        )
    options = {"url": postgres.url, "dbtable": table, "keyColumn": "id"}
    one, two, three, four = read_all(options | PERMISSIVE)
    assert one["_corrupt_record"] is None and one["n"] == Decimal("1.5")
    assert (one["day"], one["days"]) == (date(2026, 1, 2), [date(2026, 1, 2)])
    empty = dict.fromkeys(("day", "at", "n", "list", "days"))
    assert two == {"id": 2, **empty, "note": "ä", "_corrupt_record": two["_corrupt_record"]}
    assert json.loads(two["_corrupt_record"]) == {
        "id": 2,
        "day": "infinity",
        "at": "-infinity",
        "n": "NaN",
        "list": ["1000000000000000000000000000000"],
        "days": "{infinity}",
        "note": "ä",
    }
    assert (three["day"], three["at"], three["n"]) == (date(2026, 1, 2), None, None)
    assert json.loads(three["_corrupt_record"]) == {
        "id": 3,
        "day": "2026-01-02",
        "at": "294270-01-01 00:00:00+00",
        "n": "1000000000000000000000000000000",
        "list": "{{1},{2}}",
        "days": None,
        "note": None,
    }
    assert (four["n"], four["list"], four["days"]) == (None, [Decimal(1), None], [None])
    with pytest.raises(SourceError, match=f"{table}, the row with id=2: column 'day' has"):
        read_all(options)
    # The key is named where the stream does not have it.
    note = StructType().add("n", "decimal(5,1)").add("bad", "string")
    given = options | PERMISSIVE | {"columnNameOfCorruptRecord": "bad"}
    assert [row["bad"] and json.loads(row["bad"])["id"] for row in read_all(given, note)] == [
        None, 2, 3, 4,
    ]  # fmt: skip
    # Text has no limits.
    as_text = StructType().add("at", "string")
    assert [row["at"] for row in read_all(options, as_text)] == [
        "2026-01-02 00:00:00+00", "-infinity", "294270-01-01 00:00:00+00", None,
    ]  # fmt: skip


def test_postgres_splits_by_a_column_with_infinite_values(
    postgres: LocalPostgres, connect: Connect, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, day date, at timestamp)")
        connection.execute(
            f"INSERT INTO {table} SELECT g, date '2026-01-01' + g, timestamp '2026-01-01' + "
            "make_interval(days => g) FROM generate_series(1, 9) AS g"
        )
        connection.execute(f"INSERT INTO {table} VALUES (10, 'infinity', '-infinity')")
    for column in ("day", "at"):
        options = {"partitionColumn": column, "numPartitions": "3", **PERMISSIVE}
        rows = read_all({"url": postgres.url, "dbtable": table, "keyColumn": "id", **options})
        assert sorted(row["id"] for row in rows) == list(range(1, 11))
        assert [row["id"] for row in rows if row["_corrupt_record"]] == [10]


def test_duckdb_puts_rows_aside(file: Path) -> None:
    options = duckdb_table(
        file,
        'CREATE TABLE t (id INT PRIMARY KEY, day DATE, "at" TIMESTAMPTZ, s TIMESTAMP_S, n HUGEINT, '
        'u UHUGEINT, days DATE[], pair STRUCT(a TIMESTAMP, "b\'c" HUGEINT[]), '
        "named MAP(VARCHAR, DATE), note VARCHAR, ns TIMESTAMP_NS)",
        f"""INSERT INTO t VALUES
        (1, '2026-01-02', '2026-01-02', '2026-01-02', {"9" * 38}, 0, ['2026-01-02'],
         {{'a': '2026-01-02', 'b''c': [1]}}, MAP {{'k': DATE '2026-01-02'}}, 'as it is', NULL),
        (2, 'infinity', '-infinity', 'infinity', 1{"0" * 38}, {2**128 - 1}, ['-infinity'],
         {{'a': 'infinity', 'b''c': [1]}}, MAP {{'k': DATE 'infinity'}}, 'infinity', 'infinity'),
        (3, NULL, NULL, NULL, {-(2**127)}, NULL, [NULL],
         {{'a': NULL, 'b''c': [1{"0" * 38}]}}, NULL, NULL, NULL)""",
        "INSERT INTO t (id, ns) VALUES (4, '2026-01-02 00:00:00.123456789')",
    )
    one, two, three, four = read_all(options | PERMISSIVE)
    assert one["_corrupt_record"] is None and one["n"] == Decimal("9" * 38)
    assert one["named"] == [("k", date(2026, 1, 2))]
    names = ("day", "at", "s", "n", "u", "days", "pair", "named", "ns")
    assert two == {
        "id": 2, **dict.fromkeys(names), "note": "infinity",
        "_corrupt_record": two["_corrupt_record"],
    }  # fmt: skip
    assert json.loads(two["_corrupt_record"]) == {
        "id": 2,
        "day": "infinity",
        "at": "-infinity",
        "s": "infinity",
        "n": f"1{'0' * 38}",
        "u": str(2**128 - 1),
        "days": "[-infinity]",
        "pair": "{'a': infinity, 'b\\'c': [1]}",
        "named": "{k=infinity}",
        "note": "infinity",
        "ns": "infinity",
    }
    assert (three["n"], three["pair"], three["days"]) == (None, None, [None])
    assert json.loads(three["_corrupt_record"])["n"] == str(-(2**127))
    assert four["ns"] is None  # Spark's have microseconds
    assert json.loads(four["_corrupt_record"])["ns"] == "2026-01-02 00:00:00.123456789"
    with pytest.raises(SourceError, match="t, the row with id=2: column 'day' has the value 'infi"):
        read_all(options)


def test_sqlite_puts_rows_aside(file: Path) -> None:
    options = sqlite_table(
        file,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, at DATETIME, d DECIMAL(4,2), txt TEXT)",
        "INSERT INTO t VALUES (1, 1, '2026-01-02', '1.25', 'as it is')",
        "INSERT INTO t VALUES (2, 'many', 'infinity', '123.456', CAST(x'61ff' AS TEXT))",
        "INSERT INTO t VALUES (3, 9e99, NULL, NULL, x'00ff')",
    )
    one, two, three = read_all(options | PERMISSIVE)
    assert (one["n"], one["d"], one["_corrupt_record"]) == (1, Decimal("1.25"), None)
    empty = dict.fromkeys(("n", "at", "d", "txt"))
    assert two == {"id": 2, **empty, "_corrupt_record": two["_corrupt_record"]}
    assert json.loads(two["_corrupt_record"]) == {
        "id": 2, "n": "many", "at": "infinity", "d": "123.456", "txt": "\\x61ff",
    }  # fmt: skip
    assert json.loads(three["_corrupt_record"]) == {
        "id": 3, "n": "9e+99", "at": None, "d": None, "txt": "\\x00ff",
    }  # fmt: skip
    with pytest.raises(SourceError, match="t, the row with id=2: column 'n' has the value 'many'"):
        read_all(options)


def test_many_bad_rows_among_many(file: Path) -> None:
    options = duckdb_table(
        file,
        "CREATE TABLE t (id INT PRIMARY KEY, n BIGINT)",
        f"INSERT INTO t SELECT g, CASE WHEN g % 7 = 0 THEN {2**40} ELSE g END "
        "FROM generate_series(1, 30000) AS s(g)",
    )
    schema = StructType().add("_corrupt_record", "string").add("n", "integer").add("id", "integer")
    rows = read_all(options | PERMISSIVE, schema)
    assert [row["id"] for row in rows] == list(range(1, 30001))
    for row in rows:
        is_bad = row["id"] % 7 == 0
        assert row["n"] == (None if is_bad else row["id"])
        text = f'{{"n": {2**40}, "id": {row["id"]}}}' if is_bad else None
        assert row["_corrupt_record"] == text


def test_an_outbox_puts_headers_aside(file: Path) -> None:
    options = sqlite_table(
        file,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, value TEXT, headers TEXT)",
        """INSERT INTO t VALUES (1, 'a', '{"h": "x"}'), (2, 'b', 'no JSON')""",
    )
    one, two = read_all(options | PERMISSIVE | {"outbox": "true"})
    assert one == {
        "value": b"a", "headers": [{"key": "h", "value": b"x"}], "_corrupt_record": None,
    }  # fmt: skip
    assert (two["value"], two["headers"]) == (b"b", None)
    assert json.loads(two["_corrupt_record"]) == {"value": "b", "headers": "no JSON", "id": 2}
    with pytest.raises(SourceError, match=r"id=2: column 'headers'.*headers must be a JSON object"):
        read_all(options | {"outbox": "true"})


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        ("id INT, n INT", {}, "add _corrupt_record STRING"),
        ("id INT, _corrupt_record INT", {}, "add _corrupt_record STRING"),
        ("id INT NOT NULL, _corrupt_record STRING", {}, "has id as NOT NULL"),
        ("id INT, N STRING", {"columnNameOfCorruptRecord": "N"}, "has a column 'N' of its own"),
    ],
)
def test_what_would_leave_no_trace_is_refused(
    spark: SparkSession, file: Path, schema: str, options: dict[str, str], told: str
) -> None:
    given = sqlite_table(file, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)")
    with pytest.raises(ConfigError, match=told):
        read_all(given | PERMISSIVE | options, StructType.fromDDL(schema))


def test_a_type_that_no_value_fits_into_is_no_matter_of_rows(file: Path) -> None:
    options = duckdb_table(file, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    schema = StructType().add("id", ArrayType(IntegerType())).add("_corrupt_record", "string")
    with pytest.raises(ConfigError, match=r"column 'id' can't be read as array<int>"):
        read_all(options | PERMISSIVE, schema)


def test_spark_reads_on_behind_a_bad_row(
    spark: SparkSession, postgres: LocalPostgres, connect: Connect, table: str, tmp_path: Path
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, day date)")
        connection.execute(f"INSERT INTO {table} VALUES (1, now()), (2, 'infinity'), (3, now())")
    options = {"url": postgres.url, "dbtable": table, "keyColumn": "id", **PERMISSIVE}
    frame = spark.readStream.format("sparkonce_table").options(**options).load()
    assert frame.schema.simpleString() == "struct<id:int,day:date,_corrupt_record:string>"
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("id").collect()
    assert [(row.id, row.day is None, row._corrupt_record) for row in rows] == [
        (1, False, None),
        (2, True, '{"id": 2, "day": "infinity"}'),
        (3, False, None),
    ]


def test_the_schema_has_the_column(file: Path) -> None:
    options = sqlite_table(file, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    named = TableSource(options | PERMISSIVE | {"columnNameOfCorruptRecord": "bad"}).schema()
    assert named.simpleString() == "struct<id:bigint,bad:string>"
    assert TableSource(options).schema().simpleString() == "struct<id:bigint>"
