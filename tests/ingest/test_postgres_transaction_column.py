"""A column for the transaction is only as good as what fills it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ingest.following import Follower
from sparkonce.errors import ConfigError
from sparkonce.ingest.table import SourceError

Connect = Callable[[], psycopg.Connection[Any]]
Follow = Callable[..., Follower]

FILL = "CREATE FUNCTION {table}() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {does}; END$$"
SETS = "NEW.txid := pg_current_xact_id()::text; RETURN NEW"
TRIGGER = (
    "CREATE TRIGGER t BEFORE {event} ON {table} FOR EACH ROW {when} EXECUTE FUNCTION {table}()"
)


@pytest.fixture
def create(connect: Connect, table: str) -> Any:
    def make(column: str, *, trigger: str | None = None, does: str = SETS) -> None:
        with connect() as connection:
            connection.execute(
                f"CREATE TABLE {table} (id bigserial PRIMARY KEY, changed int NOT NULL DEFAULT 0, "
                f"txid {column})".encode()
            )
            if trigger is not None:
                connection.execute(FILL.format(table=table, does=does).encode())
                event, when, condition = trigger.partition("WHEN")
                statement = TRIGGER.format(table=table, event=event, when=when + condition)
                connection.execute(statement.encode())

    yield make
    with connect() as connection:
        connection.execute(f"DROP FUNCTION IF EXISTS {table} CASCADE".encode())


@pytest.mark.parametrize(
    "column",
    [
        "xid8 NOT NULL DEFAULT pg_current_xact_id()",
        "bigint NOT NULL DEFAULT txid_current()",
        "bigint NOT NULL DEFAULT (pg_current_xact_id()::text)::bigint",
        "numeric NOT NULL DEFAULT pg_current_xact_id()::text::numeric",
    ],
)
def test_a_default_fills_it(
    connect: Connect, follow: Follow, table: str, create: Any, column: str
) -> None:
    create(column)
    follower = follow(dbtable=table, transactionColumn="txid")
    early, late = connect(), connect()
    for connection in (early, late):
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    late.commit()
    assert follower.drain() == []
    early.commit()
    assert [row["id"] for row in follower.drain()] == [1, 2]


def test_a_trigger_fills_it(connect: Connect, follow: Follow, table: str, create: Any) -> None:
    create("xid8 NOT NULL", trigger="INSERT OR UPDATE")
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} (txid) VALUES ('99999999')")
    options = {"dbtable": table, "transactionColumn": "txid"}
    follower = follow(**options, updateColumn="changed")
    assert [row["id"] for row in follower.drain()] == [1]
    with connect() as connection:
        connection.execute(f"UPDATE {table} SET changed = -1")
    assert [row["changed"] for row in follower.drain()] == [-1]


@pytest.mark.parametrize(
    ("column", "trigger", "does", "told"),
    [
        ("bigint", None, "", "may be null"),
        ("xid8 DEFAULT pg_current_xact_id()", None, "", "SET NOT NULL"),
        ("bigint NOT NULL", None, "", "default is none, and no trigger"),
        ("bigint NOT NULL DEFAULT 0", None, "", "default is 0, and no trigger"),
        ("bigint NOT NULL DEFAULT 0", "UPDATE", SETS, "default is 0, and no trigger"),
        ("xid8 NOT NULL DEFAULT '0'", "INSERT", "RETURN NEW", "no trigger before INSERT"),
        ("xid8 NOT NULL DEFAULT '0'", "INSERT WHEN (NEW.id > 5)", SETS, "no trigger before INSERT"),
        ("int NOT NULL DEFAULT 0", None, "", "it must be xid8"),
        ("xid8 NOT NULL DEFAULT pg_current_xact_id_if_assigned()", None, "", "no trigger"),
    ],
)
def test_what_nobody_fills_is_refused(
    follow: Follow, table: str, create: Any, column: str, trigger: str | None, does: str, told: str
) -> None:
    create(column, trigger=trigger, does=does)
    with pytest.raises(ConfigError, match=told):
        follow(dbtable=table, transactionColumn="txid")


@pytest.mark.parametrize(
    "does",
    [
        "NEW.changed := txid_current(); RETURN NEW",
        "NEW.other_txid := txid_current(); RETURN NEW",
        "NEW.txid_2 := txid_current(); RETURN NEW",
        "NEW.txid := pg_current_xact_id_if_assigned(); RETURN NEW",
        "NEW.txid := txid_current_snapshot(); RETURN NEW",
        "NEW.txid := 0; -- not pg_current_xact_id()\n RETURN NEW",
        "/* NEW.txid := ** pg_current_xact_id() **/ RETURN NEW",
        "IF NEW.txid > 0 THEN PERFORM pg_current_xact_id(); END IF; RETURN NEW",
    ],
)
def test_a_trigger_that_sets_something_else_is_refused(
    follow: Follow, table: str, create: Any, does: str
) -> None:
    create("bigint NOT NULL DEFAULT 0", trigger="INSERT OR UPDATE", does=does)
    with pytest.raises(ConfigError, match="no trigger before INSERT sets it"):
        follow(dbtable=table, transactionColumn="txid")


@pytest.mark.parametrize(
    "does",
    [
        'new . "txid" = TXID_CURRENT (); RETURN NEW',
        "/* for all * readers */ NEW.txid := /**/ txid_current(); -- /*\n RETURN NEW",
        "SELECT 1, txid_current() INTO STRICT NEW.changed, NEW.txid; RETURN NEW",
        "SELECT txid_current() INTO NEW.txid FROM pg_class LIMIT 1; RETURN NEW",
        "DECLARE now_ bigint := txid_current(); BEGIN NEW.txid := now_; RETURN NEW; END",
    ],
)
def test_ways_to_set_it(
    connect: Connect, follow: Follow, table: str, create: Any, does: str
) -> None:
    create("bigint NOT NULL DEFAULT 0", trigger="INSERT OR UPDATE", does=does)
    follower = follow(dbtable=table, transactionColumn="txid", updateColumn="changed")
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
        (row,) = connection.execute(f"SELECT txid, pg_current_xact_id()::text FROM {table}")
        assert str(row[0]) == str(row[1])
    assert [row["id"] for row in follower.drain()] == [1]


def test_a_column_with_an_odd_name(connect: Connect, follow: Follow, table: str) -> None:
    name = 'T.x (%)"1'
    quoted = '"' + name.replace('"', '""') + '"'
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigserial PRIMARY KEY, {quoted} xid8 NOT NULL)".encode()
        )
        does = f"NEW.{quoted} := pg_current_xact_id(); RETURN NEW"
        connection.execute(FILL.format(table=table, does=does).encode())
        trigger = TRIGGER.format(table=table, event="INSERT", when="")
        connection.execute(trigger.encode())
    follow(dbtable=table, transactionColumn=name)


def test_a_disabled_trigger_fills_nothing(
    connect: Connect, follow: Follow, table: str, create: Any
) -> None:
    create("xid8 NOT NULL", trigger="INSERT")
    follow(dbtable=table, transactionColumn="txid")
    with connect() as connection:
        connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER t")
    with pytest.raises(ConfigError, match="default is none, and no trigger") as caught:
        follow(dbtable=table, transactionColumn="txid")
    # What it says to do is what helps.
    with connect() as connection:
        for statement in re.findall(r"CREATE .*?(?:END'|set_txid\(\))(?=[;,])", str(caught.value)):
            connection.execute(statement.replace("CREATE F", "CREATE OR REPLACE F").encode())
    follow(dbtable=table, transactionColumn="txid", updateColumn="changed")


@pytest.mark.parametrize(
    ("trigger", "state"),
    [
        (None, ""),
        ("INSERT", ""),
        ("INSERT OR UPDATE OF changed", ""),
        ("INSERT OR UPDATE WHEN (NEW.id > 5)", ""),
        ("UPDATE WHEN (NEW.changed IS DISTINCT FROM OLD.changed)", ""),
        ("INSERT OR UPDATE", "DISABLE"),
        ("INSERT OR UPDATE", "ENABLE REPLICA"),
        ("INSERT OR UPDATE", "ENABLE ALWAYS"),
    ],
)
def test_changes_must_set_it_where_they_are_read(
    connect: Connect, follow: Follow, table: str, create: Any, trigger: str | None, state: str
) -> None:
    create("xid8 NOT NULL DEFAULT pg_current_xact_id()", trigger=trigger)
    if state:
        with connect() as connection:
            connection.execute(f"ALTER TABLE {table} {state} TRIGGER t".encode())
    options = {"dbtable": table, "transactionColumn": "txid"}
    follow(**options)
    if state == "ENABLE ALWAYS":
        follow(**options, updateColumn="changed")
        return
    with pytest.raises(ConfigError, match="not set when a row is changed"):
        follow(**options, updateColumn="changed")


def test_a_partition_where_the_trigger_is_disabled_is_refused(
    connect: Connect, follow: Follow, table: str, create: Any
) -> None:
    """A row that comes through the parent would have the parent's default."""
    with connect() as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigint NOT NULL, txid xid8 NOT NULL DEFAULT '0') "
            "PARTITION BY LIST (id)"
        )
        connection.execute(f"CREATE TABLE {table}_1 (id bigint NOT NULL, txid xid8 NOT NULL)")
        connection.execute(f"ALTER TABLE {table} ATTACH PARTITION {table}_1 FOR VALUES IN (1)")
        connection.execute(FILL.format(table=table, does=SETS).encode())
        trigger = TRIGGER.format(table=table, event="INSERT", when="")
        connection.execute(trigger.encode())
    follow(dbtable=table, transactionColumn="txid")
    with connect() as connection:
        connection.execute(f"ALTER TABLE {table}_1 DISABLE TRIGGER t")
        connection.execute(f"INSERT INTO {table} (id) VALUES (1)")
        assert connection.execute(f"SELECT txid FROM {table}").fetchall() == [("0",)]
    with pytest.raises(ConfigError, match=f"of public.{table}_1 is filled by nothing"):
        follow(dbtable=table, transactionColumn="txid")


def test_a_child_that_fills_it_with_something_else_is_refused(
    connect: Connect, follow: Follow, table: str, create: Any
) -> None:
    create("xid8 NOT NULL DEFAULT pg_current_xact_id()")
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    follower = follow(dbtable=table, transactionColumn="txid")
    follower.drain()
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table}_1 () INHERITS ({table})")
        connection.execute(f"ALTER TABLE {table}_1 ALTER txid DROP DEFAULT")
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    assert [row["id"] for row in follower.drain()] == [2]  # a row must bring it along, or fail
    with connect() as connection:
        connection.execute(f"CREATE TABLE {table}_2 (txid xid8 DEFAULT '0') INHERITS ({table})")
    with pytest.raises(ConfigError, match=f"of public.{table}_2 is filled by nothing"):
        follower.drain()


def test_a_number_that_is_still_to_come_is_refused_when_it_is_seen(
    connect: Connect, follow: Follow, table: str, create: Any
) -> None:
    create("xid8 NOT NULL DEFAULT pg_current_xact_id()")
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
    follower = follow(dbtable=table, transactionColumn="txid")
    follower.drain()
    with connect() as connection:
        connection.execute(f"INSERT INTO {table} (txid) VALUES ('123456789012')")
    with pytest.raises(SourceError, match=r"the row 2 names a transaction in 'txid' that"):
        follower.drain()
    with connect() as connection:
        connection.execute(f"UPDATE {table} SET txid = pg_current_xact_id() WHERE id = 2")
    assert [row["id"] for row in follower.drain()] == [2]
