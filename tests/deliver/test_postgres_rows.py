"""Rows that PostgreSQL does not take, and tables that are not ours: what is refused, and when."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sparkonce.deliver.columns import BAD, ROW, Columns
from sparkonce.deliver.postgres import target
from sparkonce.deliver.store import Loaded, Part, RowsRefused, Store
from sparkonce.errors import ConfigError, EncodeError
from sparkonce.local import LocalPostgres

SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])


class Schema:
    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    def execute(self, statement: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            connection.execute(f"SET search_path = {self.name}")
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    def store(self, schema: StructType = SCHEMA, **options: str) -> Store:
        given = {
            "url": self.url,
            "dbtable": f"{self.name}.target",
            "ledgerTable": f"{self.name}.ledger",
            "pipeline": self.name,
        }
        made = target(given | options, None)
        columns = Columns.plan(
            schema, made.settings, type_of=made.type_of, nested_as_json=made.nested_as_json
        )
        return made.open_store(made.settings, columns)

    def write(self, store: Store, rows: list[dict[str, Any]]) -> Loaded:
        store.prepare()
        epoch = store.take_over().epoch
        fields = [(name, pa.int64() if name == "id" else pa.string()) for name in rows[0]]
        batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))
        name = store.stage(epoch, 1)(1, batch.schema, iter([batch]))
        transaction = store.begin(epoch)
        try:
            loaded = transaction.load([Part(1, name, batch.num_rows, batch.nbytes)])
            transaction.commit()
            return loaded
        finally:
            transaction.rollback()
            store.discard(epoch, 1)
            store.close()


@pytest.fixture
def schema(postgres: LocalPostgres, postgres_schema: str) -> Schema:
    return Schema(postgres.url, postgres_schema)


BAD_ROWS = [
    pytest.param("id smallint, name text", {"id": 40_000, "name": "a"}, id="overflow"),
    pytest.param("id bigint, name varchar(3)", {"id": 1, "name": "long"}, id="too long"),
    pytest.param("id bigint, name text CHECK (name <> 'x')", {"id": 1, "name": "x"}, id="check"),
    pytest.param("id bigint, name text NOT NULL", {"id": 1, "name": None}, id="not null"),
    pytest.param("id bigint, name uuid", {"id": 1, "name": "no uuid"}, id="cast"),
    pytest.param("id bigint, name text", {"id": 1, "name": "a\0b"}, id="zero"),
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
    aside = {BAD: None, ROW: None}
    store = schema.store(deadLetterTable=f"{schema.name}.dead")
    assert schema.write(store, [good | aside, bad | aside]) == Loaded(1, 1)
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
    row = {"id": 40_000, **dict.fromkeys(names, "v"), BAD: None, ROW: None}
    store = schema.store(wide, deadLetterTable=f"{schema.name}.dead")
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


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("id bigint", {}, "no column name"),
        ("id date, name text", {}, "does not take such rows"),
        ("id bigint, name text", {"writeMode": "upsert", "keyColumns": "id"}, "keyColumns"),
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
