"""A table of a real PostgreSQL: types, pages, changed rows, parts, deletion; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.sql.types import StructType

from ingest.following import Follower, read_all
from sparkonce.errors import ConfigError
from sparkonce.ingest.position import PositionError
from sparkonce.ingest.source import TableSource
from sparkonce.ingest.span import WHOLE
from sparkonce.ingest.table import SourceError
from sparkonce.local.postgres import LocalPostgres

Connect = Callable[[], psycopg.Connection[Any]]
Follow = Callable[..., Follower]

TYPES: list[tuple[str, str, str, Any]] = [
    ("smallint", "'-7'", "smallint", -7),
    ("integer", "'7'", "int", 7),
    ("bigint", "'9007199254740993'", "bigint", 9007199254740993),
    ("real", "'1.5'", "float", 1.5),
    ("double precision", "'0.1'", "double", 0.1),
    ("numeric(20,4)", "'-12345.6789'", "decimal(20,4)", Decimal("-12345.6789")),
    ("numeric", "'1.5'", "decimal(38,18)", Decimal("1.5")),
    ("numeric(5,-2)", "'12300'", "decimal(7,0)", Decimal(12300)),
    ("numeric(2,4)", "'0.0012'", "decimal(4,4)", Decimal("0.0012")),
    ("text", "'ä'", "string", "ä"),
    ("varchar(5)", "'ab'", "string", "ab"),
    ("char(3)", "'ab'", "string", "ab "),
    ("bytea", r"'\x00ff'", "binary", b"\x00\xff"),
    ("boolean", "'true'", "boolean", True),
    ("date", "'1969-12-31'", "date", date(1969, 12, 31)),
    ("timestamp", "'2026-01-02 03:04:05.678901'", "timestamp_ntz",
     datetime(2026, 1, 2, 3, 4, 5, 678901)),
    ("timestamptz", "'2026-01-02 03:04:05+02'", "timestamp",
     datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
    ("time", "'03:04:05'", "string", "03:04:05"),
    ("interval", "'1 day 2 hours'", "string", "1 day 02:00:00"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "string",
     "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("json", "'{\"a\": 1}'", "string", '{"a": 1}'),
    ("jsonb", "'{\"a\":1}'", "string", '{"a": 1}'),
    ("inet", "'10.0.0.1'", "string", "10.0.0.1/32"),
    ("int[]", "'{1,null,3}'", "array<int>", [1, None, 3]),
    ("text[]", "'{a,null}'", "array<string>", ["a", None]),
    ("numeric(6,2)[]", "'{1.5}'", "array<decimal(6,2)>", [Decimal("1.50")]),
    ("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'", "array<string>",
     ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("timestamptz[]", "'{2026-01-02 03:04:05+02}'", "array<timestamp>",
     [datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)]),
]  # fmt: skip


def test_every_type_arrives_with_its_value(
    postgres: LocalPostgres, connect: Connect, table: str
) -> None:
    declared = ", ".join(f"c{index} {kind}" for index, (kind, *_) in enumerate(TYPES))
    values = ", ".join(value for _, value, *_ in TYPES)
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, {declared})")
        connection.execute(f"INSERT INTO {table} VALUES (1, {values})".encode())
        connection.execute(f"INSERT INTO {table} VALUES (2)")
    schema = _source(postgres, table).schema()
    assert [field.dataType.simpleString() for field in schema[1:]] == [
        spark for _, _, spark, _ in TYPES
    ]
    full, empty = read_all(_plain(postgres, table))
    assert [full[f"c{index}"] for index in range(len(TYPES))] == [value for *_, value in TYPES]
    assert all(empty[f"c{index}"] is None for index in range(len(TYPES)))


def test_names_and_domains_and_partitioned_tables(
    postgres: LocalPostgres, connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE DOMAIN {table}_d AS bigint NOT NULL")
        connection.execute(
            f'CREATE TABLE {table} ("Odd ""name""" {table}_d, day date) PARTITION BY RANGE (day)'
        )
        connection.execute(f"CREATE TABLE {table}_1 PARTITION OF {table} DEFAULT")
        connection.execute(f"INSERT INTO {table} VALUES (3, '2026-01-01'), (1, '2026-01-02')")
    follower = follow(dbtable=table, keyColumn='odd "name"')
    assert [row['Odd "name"'] for row in follower.drain()] == [1, 3]
    follower.close()
    with connect() as connection:
        connection.execute(f"DROP TABLE {table}; DROP DOMAIN {table}_d".encode())


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("timestamptz", "'infinity'", "'infinity'"),
        ("date", "'-infinity'", "'-infinity'"),
        ("timestamp", "'294270-01-01'", "'294270-01-01 00:00:00'"),
        ("date[]", "'{infinity}'", "'{infinity}'"),
        ("timestamp[]", "'{294270-01-01}'", "'{\"294270-01-01 00:00:00\"}'"),
        ("int[]", "'{{1,2},{3,4}}'", "'{{1,2},{3,4}}'"),
        ("numeric(4,2)", "'NaN'", "'NaN'"),
        ("numeric", "'1e30'", "'1000000000000000000000000000000'"),
        ("numeric", "'1e90'", "'10000000000"),
        ("numeric", "'1e-19'", "'0.0000000000000000001'"),
        ("numeric[]", "'{1,1e30}'", "'1000000000000000000000000000000'"),
        ("numeric[]", "'{1e-19}'", "'0.0000000000000000001'"),
    ],
)
def test_a_value_that_spark_can_not_have_fails_loudly(
    postgres: LocalPostgres, connect: Connect, table: str, kind: str, value: str, told: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, v {kind})")
        connection.execute(f"INSERT INTO {table} (v) VALUES (NULL), ({value})".encode())
    with pytest.raises(SourceError) as caught:
        read_all(_plain(postgres, table))
    said = str(caught.value)
    assert said.startswith(f"{table}, the row with id=2: column 'v' has the value ")
    assert told in said and "set mode=PERMISSIVE" in said


def _source(postgres: LocalPostgres, table: str, **options: str) -> TableSource:
    return TableSource(_plain(postgres, table) | options)


def _plain(postgres: LocalPostgres, table: str) -> dict[str, str]:
    return {"url": postgres.url, "dbtable": table, "keyColumn": "id"}


def test_rows_come_in_pieces(connect: Connect, follow: Follow, table: str) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY)")
        connection.execute(f"INSERT INTO {table} SELECT FROM generate_series(1, 95)")
    opened = follow(dbtable=table, fetchsize="20").table
    start = opened.start(latest=False)
    end = opened.advance(start, None)
    assert end is not None
    batches = opened.read(start, end, WHOLE, opened.columns())
    assert [batch.num_rows for batch in batches] == [20, 20, 20, 20, 15]


def test_pages_keep_the_window_while_the_table_goes_on(
    connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, v int DEFAULT 0)")
        connection.execute(f"INSERT INTO {table} SELECT FROM generate_series(1, 10)")
    follower = follow(dbtable=table)
    assert [row["id"] for row in follower.step(4)] == [1, 2, 3, 4]
    with connect() as connection:
        connection.execute(f"UPDATE {table} SET v = 1 WHERE id IN (2, 6)")
        connection.execute(f"INSERT INTO {table} VALUES (0), (11)")
    follower.reopen()
    # 6 has left the window and comes again with its new value; so does 2, which was read already.
    assert [row["id"] for row in follower.step(4)] == [5, 7, 8, 9]
    assert [row["id"] for row in follower.step(4)] == [10]
    assert [(row["id"], row["v"]) for row in follower.drain(2)] == [(0, 0), (2, 1), (6, 1), (11, 0)]
    assert [len(rows) for _, _, rows in follower.batches] == [4, 4, 1, 2, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"transactionColumn": "txid"},
        {"transactionColumn": "txid", "updateColumn": "changed"},
        {"keyLag": "100"},
    ],
)
def test_what_is_new_is_found_by_an_index(
    connect: Connect, follow: Follow, table: str, options: dict[str, str]
) -> None:
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigserial PRIMARY KEY, changed timestamptz NOT NULL "
            "DEFAULT clock_timestamp(), txid xid8 NOT NULL DEFAULT pg_current_xact_id(), v text)"
        )
        connection.execute(f"CREATE INDEX ON {table} (txid)")
        connection.execute(f"CREATE INDEX ON {table} (changed, id)")
        connection.execute(
            f"CREATE FUNCTION {table}() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN NEW.txid := pg_current_xact_id(); RETURN NEW; END'"
        )
        connection.execute(
            f"CREATE TRIGGER t BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}()"
        )
        connection.execute(
            f"INSERT INTO {table} (v) SELECT repeat('x', 100) FROM generate_series(1, 20000)"
        )
    follower = follow(dbtable=table, **options)
    follower.drain()
    with connect() as connection:
        connection.execute(f"UPDATE {table} SET changed = clock_timestamp() WHERE id = 7")
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    with connect() as connection:
        connection.execute(f"ANALYZE {table}")
    new = follower.drain(1)
    assert new[-1]["id"] == 20001
    with connect() as connection:
        plans = []
        for first, last, _ in follower.batches[1:]:
            start, end = (follower.table.form.from_json(_json(text)) for text in (first, last))
            rows = follower.table._batches.rows(start, end)
            plan = connection.execute(f"EXPLAIN SELECT * FROM {rows}".encode()).fetchall()
            plans.append("\n".join(line for (line,) in plan))
    assert plans
    assert not [plan for plan in plans if "Seq Scan" in plan]
    with connect() as connection:
        connection.execute(f"DROP FUNCTION {table} CASCADE".encode())


def test_rows_that_are_changed_come_again_in_the_order_of_their_changes(
    connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, changed timestamptz NOT NULL)"
        )
        connection.execute(
            f"INSERT INTO {table} SELECT g, '2026-01-01' FROM generate_series(1, 4) g"
        )
    follower = follow(dbtable=table, updateColumn="changed")
    assert [row["id"] for row in follower.drain(3)] == [1, 2, 3, 4]
    with connect() as connection:
        connection.execute(f"UPDATE {table} SET changed = '2026-03-01' WHERE id = 1")
        connection.execute(f"UPDATE {table} SET changed = '2026-02-01' WHERE id = 4")
        # Its time lies before all that was read; it is found all the same.
        connection.execute(f"UPDATE {table} SET changed = '2020-01-01' WHERE id = 3")
    assert [row["id"] for row in follower.drain(2)] == [3, 4, 1]


def test_a_row_that_is_changed_all_the_time_holds_up_nobody(
    connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, v int DEFAULT 0)")
        connection.execute(f"INSERT INTO {table} SELECT FROM generate_series(1, 3)")
    follower = follow(dbtable=table)
    open_ = connect()
    open_.execute("SELECT pg_current_xact_id()")
    with connect() as connection:
        connection.execute(f"UPDATE {table} SET v = v + 1 WHERE id = 1")
    assert [row["id"] for row in follower.drain()] == [2, 3]


def test_a_start_with_rows_to_come_is_noted_down(
    connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, value text)")
        connection.execute(f"INSERT INTO {table} (value) VALUES ('before')")
    open_ = connect()
    open_.execute(f"INSERT INTO {table} (value) VALUES ('open then')")
    follower = follow(dbtable=table, startingOffsets="latest")
    assert '"start": true' in follower.offset
    open_.commit()
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} (value) VALUES ('after')")
    assert [row["value"] for row in follower.drain()] == ["open then", "after"]


@pytest.mark.parametrize("column", ["id", "at", "day", "small"])
def test_a_batch_in_parts_is_the_same_batch(
    connect: Connect, follow: Follow, table: str, column: str
) -> None:
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigserial PRIMARY KEY, at timestamptz, day date, "
            "small smallint)"
        )
        connection.execute(
            f"INSERT INTO {table} (at, day, small) SELECT now() + g * '1 hour'::interval, "
            f"'2026-01-01'::date + g, g % 7 FROM generate_series(1, 100) g"
        )
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    follower = follow(dbtable=table, numPartitions="4", partitionColumn=column)
    follower.drain()
    start, end = (follower.table.form.from_json(_json(text)) for text in follower.batches[0][:2])
    assert len(follower.table.spans(start, end)) == 4
    assert sorted(follower.keys) == list(range(1, 102))


def _json(text: str) -> Any:
    import json

    return json.loads(text)


def test_what_was_given_out_is_deleted_and_nothing_else(
    connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, value text)")
        connection.execute(f"INSERT INTO {table} (value) SELECT 'v' FROM generate_series(1, 5)")
    follower = follow(dbtable=table, outbox="true", deleteAfterPublishing="true")
    open_ = connect()
    open_.execute(f"INSERT INTO {table} (value) VALUES ('open')")
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} (value) VALUES ('behind it')")
    follower.step(3, follower.table.newest())
    assert follower.keys == [1, 2, 3]
    with connect() as connection:
        connection.execute(f"UPDATE {table} SET value = 'changed' WHERE id = 2")
    follower.delete()
    assert _keys(connect, table) == [2, 4, 5, 7]  # 2 is another row now, and comes again
    follower.drain()
    follower.delete()
    assert _keys(connect, table) == [2, 7]
    open_.commit()
    follower.drain()
    follower.delete()
    follower.delete()
    assert follower.keys == [1, 2, 3, 4, 5, 2, 6, 7]
    assert _keys(connect, table) == []


def _keys(connect: Connect, table: str) -> list[int]:
    with connect() as connection:
        rows = connection.execute(f"SELECT id FROM {table} ORDER BY id").fetchall()
    return [key for (key,) in rows]


def test_a_reader_needs_no_more_than_select(
    postgres: LocalPostgres, connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, value text)")
        connection.execute(f"INSERT INTO {table} (value) VALUES ('v')")
        connection.execute(f"CREATE ROLE {table} LOGIN PASSWORD 'secret'")
        connection.execute(f"ALTER ROLE {table} SET default_transaction_read_only = on")
        connection.execute(f"GRANT SELECT ON {table} TO {table}")
    reader = {"dbtable": table, "outbox": "true", "user": table, "password": "secret"}
    try:
        assert [row["value"] for row in follow(**reader).drain()] == ["v"]
        with pytest.raises(ConfigError, match="may not delete"):
            follow(**reader, deleteAfterPublishing="true")
        with pytest.raises(SourceError, match="password"):
            follow(**reader | {"password": "wrong"})
    finally:
        with connect() as connection:
            connection.execute(f"DROP OWNED BY {table}; DROP ROLE {table}".encode())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keyColumn": "idd"}, "keyColumn='idd' is no column"),
        ({"keyColumn": "j"}, "gives no order"),
        ({"keyColumn": "maybe"}, "may be null"),
        ({"updateColumn": "maybe"}, "updateColumn='maybe' may be null"),
        ({"transactionColumn": "id"}, "it must be xid8"),
        ({"keyColumn": "name", "keyLag": "5"}, "keyLag is a distance"),
        ({"partitionColumn": "name", "numPartitions": "2"}, "partitionColumn='name'"),
        ({"partitionColumn": "nope", "numPartitions": "2"}, "partitionColumn='nope'"),
        ({"dbtable": "nope"}, "no table that this user can see"),
        ({"dbtable": "not a name"}, "dbtable='not a name'"),
        ({"dbtable": "pg_catalog.pg_tables"}, "a view"),
        ({"outbox": "true"}, "no column 'value'"),
    ],
)
def test_what_does_not_fit_the_table_is_refused_early(
    postgres: LocalPostgres, connect: Connect, table: str, options: dict[str, str], told: str
) -> None:
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, name text NOT NULL, j json NOT NULL, "
            "maybe int)"
        )
    with pytest.raises(ConfigError, match=told):
        _source(postgres, options.get("dbtable", table), **options).schema()


def test_a_column_without_a_type_in_spark_can_be_left_out(
    postgres: LocalPostgres, connect: Connect, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, huge numeric(50,2))")
        connection.execute(f"INSERT INTO {table} VALUES (1, 2)")
    with pytest.raises(ConfigError, match=r"'huge' is of type numeric\(50,2\)"):
        _source(postgres, table).schema()
    assert read_all(_plain(postgres, table), StructType().add("ID", "integer")) == [{"ID": 1}]


def test_a_position_of_another_order_is_refused(
    connect: Connect, follow: Follow, table: str
) -> None:
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, other int NOT NULL)")
    offset = follow(dbtable=table).offset
    follower = follow(dbtable=table, keyColumn="other")
    follower.offset = offset
    with pytest.raises(PositionError, match="set keyColumn and updateColumn as they were"):
        follower.step()


def test_the_reader_lives_through_a_restart_of_the_server() -> None:
    with LocalPostgres() as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t (id bigserial PRIMARY KEY)")
            connection.execute("INSERT INTO t SELECT FROM generate_series(1, 3)")
        follower = Follower({"url": server.url, "dbtable": "t", "keyColumn": "id"})
        follower.drain()
        for number, ends in enumerate([server.restart, lambda: (server.kill(), server.start())]):
            ends()
            with psycopg.connect(server.url) as connection:
                connection.execute(f"INSERT INTO t VALUES ({100 + number})")
            follower.drain()
        assert follower.keys == [1, 2, 3, 100, 101]
        follower.close()
