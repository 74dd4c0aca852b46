"""Rows that PostgreSQL does not take, and tables that are not ours: what is refused, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from deliver.postgres_schema import ASIDE, ID, NAME, Schema, write
from sparkonce.deliver.columns import DELETED, SEQUENCE
from sparkonce.deliver.store import Loaded, RowsRefused, StoreError
from sparkonce.errors import ConfigError, EncodeError


def random_text(length: int) -> str:
    """Such as can't be compressed to what fits into an index."""
    return "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


BAD_ROWS = [
    pytest.param("id smallint, name text", {"id": 40_000, "name": "a"}, id="overflow"),
    pytest.param("id bigint, name varchar(3)", {"id": 1, "name": "long"}, id="too long"),
    pytest.param("id bigint, name text CHECK (name <> 'x')", {"id": 1, "name": "x"}, id="check"),
    pytest.param("id bigint, name text NOT NULL", {"id": 1, "name": None}, id="not null"),
    pytest.param("id bigint, name uuid", {"id": 1, "name": "no uuid"}, id="cast"),
    pytest.param("id bigint, name text", {"id": 1, "name": "a\0b"}, id="zero"),
    pytest.param("id bigint, name text UNIQUE", {"id": 1, "name": random_text(9000)}, id="index"),
]


@pytest.mark.parametrize(("columns", "bad"), BAD_ROWS)
def test_a_bad_row_fails_the_batch_or_is_put_aside(
    schema: Schema, columns: str, bad: dict[str, Any]
) -> None:
    schema.execute(f"CREATE TABLE target ({columns})")
    good = {"id": 2, "name": "6a2f41a3-c54c-fce8-32d2-0324e1c32e22" if "uuid" in columns else "b"}
    with pytest.raises((RowsRefused, EncodeError), match="deadLetterTable"):
        schema.write(schema.store(), [good, bad])
    assert schema.execute("SELECT * FROM target") == []
    store = schema.store(dead="dead")
    assert schema.write(store, [good | ASIDE, bad | ASIDE]) == Loaded(1, 1)
    assert [row["id"] for row in schema.execute("SELECT id FROM target")] == [2]
    (dead,) = schema.execute('SELECT reason, "row" FROM dead')
    assert dead["reason"]
    assert f'"id": {bad["id"]}' in dead["row"]


def test_a_row_of_many_columns_is_put_aside_too(schema: Schema) -> None:
    names = [f"c{number}" for number in range(60)]
    wide = StructType(
        [StructField("id", LongType()), *(StructField(n, StringType()) for n in names)]
    )
    columns = ", ".join(f"{name} text" for name in names)
    schema.execute(f"CREATE TABLE target (id smallint, {columns})")
    row = {"id": 40_000, **dict.fromkeys(names, "v"), **ASIDE}
    store = schema.store(wide, dead="dead")
    assert schema.write(store, [row]) == Loaded(0, 1)


def test_constraints_that_are_checked_late_are_checked_in_time(schema: Schema) -> None:
    schema.execute(
        "CREATE TABLE target (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, name text)"
    )
    with pytest.raises(RowsRefused):
        schema.write(schema.store(), [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}])


def test_what_a_trigger_keeps_out_of_the_table_was_staged_all_the_same(schema: Schema) -> None:
    schema.execute("CREATE TABLE target (id bigint, name text)")
    schema.execute(
        "CREATE FUNCTION even() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF NEW.id % 2 = 0 THEN RETURN NEW; END IF; RETURN NULL; END$$"
    )
    schema.execute(
        "CREATE TRIGGER even BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION even()"
    )
    rows = [{"id": number, "name": "a"} for number in (1, 2)]
    assert schema.write(schema.store(), rows) == Loaded(2)
    assert schema.execute("SELECT id FROM target") == [{"id": 2}]


UPSERT = {"writeMode": "upsert", "keyColumns": "id"}


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("id bigint", {}, "no column name"),
        ("id date, name text", {}, "does not take such rows"),
        ("id bigint, name text", UPSERT, "keyColumns"),
        ("id bigint PRIMARY KEY DEFERRABLE, name text", UPSERT, "NOT DEFERRABLE"),
        ("id bigint PRIMARY KEY DEFERRABLE, name text", {}, None),
        ("id bigint, name text, more int NOT NULL", {}, None),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_the_start(
    schema: Schema, columns: str, options: dict[str, str], told: str | None
) -> None:
    schema.execute(f"CREATE TABLE target ({columns})")
    store = schema.store(**options)
    if told is None:
        store.prepare()  # what a default or a trigger would fill is the table's own affair
    else:
        with pytest.raises(ConfigError, match=told):
            store.prepare()
    store.close()


# -- which rows are bad, and which are not ------------------------------------------------------


@pytest.fixture
def login(schema: Schema) -> Iterator[dict[str, str]]:
    """Of a user whom the table's policy is for."""
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text)")
    schema.execute("ALTER TABLE target ENABLE ROW LEVEL SECURITY")
    schema.execute("CREATE POLICY small ON target USING (id < 20) WITH CHECK (id < 10)")
    user = f"{schema.name}_user"
    schema.execute(f"CREATE USER {user} PASSWORD 'secret'")
    schema.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema.name} TO {user}")
    schema.execute(f"GRANT SELECT, INSERT, UPDATE ON target TO {user}")
    yield {"user": user, "password": "secret"}
    schema.execute(f"DROP OWNED BY {user}")
    schema.execute(f"DROP USER {user}")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_that_a_policy_refuses(schema: Schema, login: dict[str, str], mode: str) -> None:
    """Their error has the code of a missing privilege."""
    schema.execute("INSERT INTO target VALUES (30, 'not theirs')")
    options = login | {"writeMode": mode, "keyColumns": "id"}
    rows = [{"id": id_, "name": "a"} for id_ in (1, 10, 30)]
    with pytest.raises(RowsRefused, match="row-level security"):
        schema.write(schema.store(**options), rows)
    aside = [row | ASIDE for row in rows]
    assert schema.write(schema.store(**options, dead="dead"), aside) == Loaded(1, 2)
    assert schema.rows() == [(1, "a"), (30, "not theirs")]
    schema.execute(f"REVOKE INSERT ON target FROM {login['user']}")
    with pytest.raises(ConfigError, match="permission denied"):
        schema.store(**options).prepare()


@pytest.mark.parametrize("dead", [{}, {"dead": "dead"}])
def test_a_privilege_that_is_missing_is_no_fault_of_rows(
    schema: Schema, login: dict[str, str], dead: dict[str, str]
) -> None:
    """Also where a policy's refusal has the same code: the batch fails, and is whole later."""
    user, rows = login["user"], [{"id": 1, "name": "a"} | (ASIDE if dead else {})]
    schema.execute("CREATE SEQUENCE numbers")
    schema.execute("ALTER TABLE target ADD number bigint DEFAULT nextval('numbers')")
    store, epoch = schema.open(**login, **dead)
    with pytest.raises(StoreError, match="permission denied for sequence numbers"):
        write(store, epoch, rows)
    schema.execute(f"GRANT USAGE ON SEQUENCE numbers TO {user}")
    schema.execute(f"REVOKE INSERT ON target FROM {user}")
    with pytest.raises(StoreError, match="permission denied for table target"):
        write(store, epoch, rows, 2)
    schema.execute(f"GRANT INSERT ON target TO {user}")
    assert write(store, epoch, rows, 3) == Loaded(1)
    assert not dead or schema.rows("*", "dead") == []
    store.close()


def test_rows_that_a_view_refuses(schema: Schema) -> None:
    schema.execute("CREATE TABLE behind (id bigint, name text)")
    view = "CREATE VIEW target AS SELECT * FROM behind WHERE id < 10 WITH CHECK OPTION"
    schema.execute(view)
    rows = [{"id": id_, "name": "a", **ASIDE} for id_ in (1, 10)]
    assert schema.write(schema.store(dead="dead"), rows) == Loaded(1, 1)


TREE = "id bigint PRIMARY KEY, name text, parent bigint REFERENCES target"


@pytest.mark.parametrize("order", ["children first", "parents first", "shuffled"])
def test_a_child_and_its_parent_may_come_in_any_order(
    schema: Schema, order: str, seed: int
) -> None:
    """One statement takes both, and so does a batch with another row that is bad."""
    schema.execute(f"CREATE TABLE target ({TREE})")
    ids = list(range(1, 41))
    if order == "children first":
        ids.reverse()
    elif order == "shuffled":
        random.Random(seed).shuffle(ids)
    rows = [{"id": id_, "name": "a", "parent": id_ - 1 or None} for id_ in ids]
    rows.insert(20, {"id": 100, "name": "lost", "parent": 99})
    fields = StructType([ID, NAME, StructField("parent", LongType())])
    store = schema.store(fields, dead="dead")
    assert schema.write(store, [row | ASIDE for row in rows]) == Loaded(40, 1)
    assert [id_ for (id_,) in schema.rows("id")] == list(range(1, 41))


@pytest.mark.parametrize("ids", [(1, 2, 100), (100, 1, 2)], ids=["before", "behind"])
def test_rows_that_need_each_other_are_taken_together(schema: Schema, ids: tuple[int, ...]) -> None:
    """One statement takes a cycle; so does a batch in which another row is bad."""
    schema.execute(f"CREATE TABLE target ({TREE}, CHECK (name <> 'x'))")
    parents = {1: 2, 2: 1, 100: None}
    rows = [
        {"id": id_, "name": "x" if id_ == 100 else "a", "parent": parents[id_]} | ASIDE
        for id_ in ids
    ]
    fields = StructType([ID, NAME, StructField("parent", LongType())])
    assert schema.write(schema.store(fields, dead="dead"), rows) == Loaded(2, 1)
    assert [id_ for (id_,) in schema.rows("id")] == [1, 2]


def changes(*rows: tuple[int | None, str | None, int, bool]) -> list[dict[str, Any]]:
    return [
        {"id": id_, "name": name, "at": at, DELETED: gone, SEQUENCE: at, **ASIDE}
        for id_, name, at, gone in rows
    ]


CHANGES = StructType([ID, NAME, StructField("at", LongType()), StructField("gone", BooleanType())])
UPSERTS = {
    "writeMode": "upsert",
    "keyColumns": "id",
    "sequenceBy": "at",
    "deleteColumn": "gone",
    "dead": "dead",
}


def test_the_row_before_a_bad_one_is_the_newest(schema: Schema) -> None:
    """As if the changes of a key were written one after the other."""
    schema.execute(
        "CREATE TABLE target (id bigint PRIMARY KEY, name text CHECK (name <> 'x'), at bigint)"
    )
    rows = changes(
        (1, "a", 1, False),
        (1, "b", 2, False),
        (1, "x", 3, False),
        (1, "x", 4, False),
        (2, "x", 1, False),
        (3, "c", 1, False),
        (3, "x", 3, False),
        (3, None, 2, True),
        (4, "d", 1, False),
    )
    assert schema.write(schema.store(CHANGES, **UPSERTS), rows) == Loaded(5, 4)
    assert schema.rows() == [(1, "b"), (4, "d")]
    what = "\"row\"::json->>'id' AS id, \"row\"::json->>'at' AS at"
    assert sorted(schema.rows(what, "dead")) == [("1", "3"), ("1", "4"), ("2", "1"), ("3", "3")]


def test_a_delete_that_is_refused(schema: Schema) -> None:
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text, at bigint)")
    schema.execute("CREATE TABLE child (parent bigint REFERENCES target)")
    schema.execute("INSERT INTO target VALUES (1, 'a'), (2, 'b')")
    schema.execute("INSERT INTO child VALUES (1)")
    rows = changes((1, None, 1, True), (2, None, 1, True), (3, "c", 1, False))
    assert schema.write(schema.store(CHANGES, **UPSERTS), rows) == Loaded(2, 1)
    assert schema.rows() == [(1, "a"), (3, "c")]


def test_what_was_unique_in_a_deleted_row_is_free(schema: Schema) -> None:
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text UNIQUE, at bigint)")
    schema.execute("INSERT INTO target VALUES (2, 'a')")
    rows = changes((1, "a", 1, False), (2, None, 1, True))
    assert schema.write(schema.store(CHANGES, **UPSERTS), rows) == Loaded(2)
    assert schema.rows() == [(1, "a")]


UNIQUES = [
    pytest.param("name text UNIQUE", id="unique"),
    pytest.param("name text, EXCLUDE USING btree (name WITH =)", id="exclusion"),
]


@pytest.mark.parametrize("column", UNIQUES)
@pytest.mark.parametrize(
    ("there", "rows", "good"),
    [
        pytest.param([(9, "a", 0)], [(1, "a", 1, False), (9, None, 1, True)], [1], id="deleted"),
        pytest.param(
            [(1, "a", 0), (2, "b", 0), (3, "c", 0)],
            [(1, "b", 1, False), (2, "c", 1, False), (3, "d", 1, False)],
            [1, 2, 3],
            id="changed",
        ),
        pytest.param(
            [(1, "a", 0), (8, "child", 0)],
            [(id_, None, 1, True) for id_ in (1, 7, 8)] + [(4, "a", 1, False)],
            [4],
            id="deleted at last",
        ),
    ],
)
def test_beside_a_bad_row_others_make_room_as_well(
    schema: Schema, column: str, there: list[Any], rows: list[Any], good: list[int]
) -> None:
    schema.execute(
        f"CREATE TABLE target (id bigint PRIMARY KEY, at bigint CHECK (at < 9), {column})"
    )
    for id_, name, at in there:
        schema.execute(f"INSERT INTO target (id, name, at) VALUES ({id_}, '{name}', {at})")
    if (8, "child", 0) in there:
        schema.execute("ALTER TABLE target ADD parent bigint REFERENCES target")
        schema.execute("UPDATE target SET parent = 1 WHERE id = 8")
    batch = changes(*rows, (5, "z", 9, False))
    assert schema.write(schema.store(CHANGES, **UPSERTS), batch) == Loaded(len(rows), 1)
    assert [id_ for (id_,) in schema.rows("id")] == good


def test_the_one_before_a_bad_row_may_be_what_others_refer_to(schema: Schema) -> None:
    schema.execute(f"CREATE TABLE target ({TREE}, at bigint CHECK (at < 9))")
    fields = StructType([*CHANGES.fields, StructField("parent", LongType())])
    rows = changes((1, "a", 1, False), (1, "b", 9, False), (2, "c", 1, False))
    rows = [row | {"parent": 1 if row["id"] == 2 else None} for row in rows]
    assert schema.write(schema.store(fields, **UPSERTS), rows) == Loaded(2, 1)
    assert schema.rows() == [(1, "a"), (2, "c")]


def test_keys_are_compared_as_the_table_compares_them(schema: Schema) -> None:
    """They are staged as text here, and one is no key at all."""
    schema.execute("CREATE TABLE target (id int PRIMARY KEY, name text, at bigint)")
    fields = StructType([StructField("id", StringType()), *CHANGES.fields[1:]])
    rows = changes((None, "a", 1, False), (None, "b", 2, False), (None, "c", 1, False))
    for row, id_ in zip(rows, ("1", "01", "one"), strict=True):
        row["id"] = id_
    for number, row in enumerate(rows):
        row["at"] = row[SEQUENCE] = number
    assert schema.write(schema.store(fields, **UPSERTS), rows) == Loaded(2, 1)
    assert schema.rows() == [(1, "b")]


ROUNDED = [
    pytest.param("numeric(10, 2)", DecimalType(38, 10), Decimal("1.001"), id="decimal"),
    pytest.param("numeric(10, 2)", StringType(), "1.001", id="decimal as text"),
    pytest.param("numeric(10, 0)", DoubleType(), 1.25, id="whole"),
    pytest.param("timestamp(0)", TimestampNTZType(), datetime(2024, 1, 1, 0, 0, 1, 5), id="time"),
    pytest.param("timestamp(0)", StringType(), "2024-01-01 00:00:01.000005", id="time as text"),
]


@pytest.mark.parametrize(("declared", "kind", "key"), ROUNDED)
def test_keys_are_rounded_as_the_table_rounds_them(
    schema: Schema, declared: str, kind: Any, key: Any
) -> None:
    """Or a delete would not find the row that was written under the same key."""
    schema.execute(f"CREATE TABLE target (id {declared} PRIMARY KEY, name text, at bigint)")
    fields = StructType([StructField("id", kind), *CHANGES.fields[1:]])
    store, epoch = schema.open(fields, **UPSERTS)
    news = [row | {"id": key} for row in changes((1, "a", 1, False), (1, "b", 2, False))]
    assert write(store, epoch, news) == Loaded(2)
    assert schema.rows("name") == [("b",)]
    (gone,) = changes((1, None, 3, True))
    assert write(store, epoch, [gone | {"id": key}], 2) == Loaded(1)
    assert schema.rows() == []
    store.close()


def test_a_key_that_is_too_long_is_not_cut(schema: Schema) -> None:
    schema.execute("CREATE TABLE target (id varchar(3) PRIMARY KEY, name text, at bigint)")
    fields = StructType([StructField("id", StringType()), *CHANGES.fields[1:]])
    rows = changes((1, "a", 1, False), (2, None, 1, True), (3, "b", 1, False))
    for row, id_ in zip(rows, ("one", "oneself", "three"), strict=True):
        row["id"] = id_
    assert schema.write(schema.store(fields, **UPSERTS), rows) == Loaded(2, 1)
    assert schema.rows() == [("one", "a")]


NULL_KEYS = [
    pytest.param("UNIQUE (id)", 5, id="distinct"),
    pytest.param("UNIQUE NULLS NOT DISTINCT (id)", 1, id="not distinct"),
    pytest.param("UNIQUE NULLS NOT DISTINCT (id) INCLUDE (name)", 1, id="not distinct, include"),
    pytest.param("UNIQUE (id), UNIQUE NULLS NOT DISTINCT (id, name)", 5, id="more columns"),
    pytest.param(
        "UNIQUE (id); CREATE UNIQUE INDEX ON target (id, lower(name)) NULLS NOT DISTINCT",
        5,
        id="an expression",
    ),
    pytest.param(
        "UNIQUE (id); CREATE UNIQUE INDEX ON target (id) NULLS NOT DISTINCT WHERE name = 'zz'",
        5,
        id="partial",
    ),
]


@pytest.mark.parametrize(("unique", "kept"), NULL_KEYS)
def test_null_keys_are_what_the_table_says(schema: Schema, unique: str, kept: int) -> None:
    """Equal to each other, or to nothing; and a delete finds only what is equal."""
    constraint, _, index = unique.partition("; ")
    schema.execute(f"CREATE TABLE target (id bigint, name text, at bigint, {constraint})")
    if index:
        schema.execute(index)
    store, epoch = schema.open(CHANGES, **UPSERTS)
    news = changes(*((None, str(at), at, False) for at in range(5)))
    assert write(store, epoch, news) == Loaded(5)
    assert [name for (name,) in schema.rows("name")] == ["0", "1", "2", "3", "4"][-kept:]
    write(store, epoch, changes((None, None, 5, True)), 2)
    assert len(schema.rows()) == (0 if kept == 1 else kept)
    store.close()


def test_columns_may_have_any_name(schema: Schema) -> None:
    """`r` and `refused` were those of variables."""
    names = ["r", "refused", "s", "t", "n", "excluded", "g", "l", "c", "parts"]
    fields = StructType([StructField(name, LongType()) for name in names])
    columns = ", ".join(f'"{name}" smallint' for name in names)
    schema.execute(f"CREATE TABLE target ({columns}, PRIMARY KEY (r, refused))")
    options = {"writeMode": "upsert", "keyColumns": "r,refused", "dead": "dead"}
    rows = [dict.fromkeys(names, 1) | ASIDE, dict.fromkeys(names, 40_000) | ASIDE]
    assert schema.write(schema.store(fields, **options), rows) == Loaded(1, 1)


@pytest.mark.parametrize("bad", [1, 50])
def test_what_bad_rows_cost_does_not_grow_with_the_batch(schema: Schema, bad: int) -> None:
    """A trial is a transaction number of the server's, of which it has not too many."""
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text CHECK (name <> 'x'))")
    store, epoch = schema.open(dead="dead")
    count = 5_000
    rows = [
        {"id": id_, "name": "x" if id_ % (count // bad) == 7 else "a", **ASIDE}
        for id_ in range(count)
    ]
    before = number(schema)
    assert write(store, epoch, rows) == Loaded(count - bad, bad)
    # Of each bad one, no more than it takes to halve what it is found in, there and back.
    assert number(schema) - before < 10 + bad * 2 * (count // bad).bit_length()
    store.close()


def number(schema: Schema) -> int:
    ((found,),) = schema.rows("txid_snapshot_xmax(txid_current_snapshot())", "(SELECT) AS nothing")
    return int(found)
