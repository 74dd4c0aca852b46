"""What PostgreSQL's sink waits for and how long, what it needs, and where it looks for a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from deliver.postgres_schema import ASIDE, ID, NAME, Schema, batch_of, stage, write
from sparkonce.deliver.columns import SEQUENCE
from sparkonce.deliver.conformance import ENTRY, SOURCES
from sparkonce.deliver.postgres.store import PostgresStore
from sparkonce.deliver.store import Loaded, Part, StoreError
from sparkonce.errors import ConfigError

TABLE = "CREATE TABLE target (id bigint, name text)"
ROW = {"id": 1, "name": "a"}
SOON = {"lockTimeout": "300ms"}


# -- waiting ------------------------------------------------------------------------------------


def test_a_lock_on_the_table_is_not_waited_for_without_an_end(schema: Schema) -> None:
    schema.execute(TABLE)
    store, epoch = schema.open(**SOON)
    with schema.connect() as other:
        other.execute("LOCK TABLE target")
        with pytest.raises(StoreError, match="lockTimeout"):
            write(store, epoch, [ROW])
    assert write(store, epoch, [ROW], 2).records == 1
    store.close()


def test_a_lock_on_the_stage(schema: Schema) -> None:
    """On the executors, and in the driver."""
    schema.execute(TABLE)
    store, epoch = schema.open(**SOON)
    tasks = store.stage(epoch, 1)
    batch = batch_of([ROW])
    with schema.connect() as other:
        other.execute(f"LOCK TABLE {tasks.table}")
        with pytest.raises(Exception, match="lock timeout"):
            tasks(1, batch.schema, iter([batch]))
        with pytest.raises(StoreError, match="lockTimeout"):
            store.stage(epoch, 2)
        with pytest.raises(StoreError, match="lockTimeout"):
            store.discard(epoch, 1)
        store.close()
        with pytest.raises(ConfigError, match="lockTimeout"):
            schema.open(**SOON)
    schema.open()[0].close()


def test_a_lock_on_the_ledger(schema: Schema) -> None:
    """By somebody who is no pipeline, and whom nobody ends therefore."""
    schema.execute(TABLE)
    store, epoch = schema.open(**SOON)
    with schema.connect() as other:
        other.execute("SELECT * FROM ledger FOR UPDATE")
        for action in (store.take_over, store.holder, lambda: store.begin(epoch)):
            with pytest.raises(StoreError, match="lockTimeout"):
                action()
    with schema.connect() as other:
        other.execute("LOCK TABLE ledger")
        with pytest.raises(StoreError, match="lockTimeout"):
            store.take_over()
    store.close()


def test_a_lock_that_others_make_their_tables_under(schema: Schema) -> None:
    with schema.connect() as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('sparkonce'))")
        with pytest.raises(ConfigError, match="lockTimeout"):
            schema.store(createTable="true", **SOON).prepare()


@pytest.mark.parametrize("text", ["0", "10", "-1s", "1 fortnight", "1s; DROP TABLE x"])
def test_times_that_are_none(schema: Schema, text: str) -> None:
    with pytest.raises(ConfigError, match="lockTimeout"):
        schema.store(lockTimeout=text)


# -- the order of locks -------------------------------------------------------------------------

AT = StructField("at", LongType())
UPSERT = {"writeMode": "upsert", "keyColumns": "id,name"}


def whole(id_: int, at: int) -> dict[str, Any]:
    return {"id": id_, "name": "a", "at": at}


def _assert_9_is_locked_before_10(
    schema: Schema, store: PostgresStore, epoch: int, part: Part
) -> None:
    with ThreadPoolExecutor(1) as pool, schema.connect() as other:
        other.execute("SELECT FROM target WHERE id = 9 FOR UPDATE")
        transaction = store.begin(epoch)
        loaded = pool.submit(transaction.load, [part])
        wait_until(lambda: waits(schema))
        other.execute("SELECT FROM target WHERE id = 10 FOR UPDATE NOWAIT")
        other.rollback()
        assert loaded.result().records == 2
        transaction.commit()


@pytest.mark.parametrize("keys", ["id,name", "name,id"])
@pytest.mark.parametrize("kind", [LongType(), StringType()], ids=["as numbers", "as text"])
def test_keys_are_locked_in_one_order(schema: Schema, keys: str, kind: Any) -> None:
    """Whatever order they are staged in, and of whatever type: or two would wait for each other."""
    schema.execute("CREATE TABLE target (id bigint, name text, at bigint, PRIMARY KEY (id, name))")
    schema.execute("INSERT INTO target VALUES (9, 'a', 0), (10, 'a', 0)")
    fields = StructType([StructField("id", kind), NAME, AT])
    store, epoch = schema.open(fields, **UPSERT | {"keyColumns": keys})
    rows = [whole(id_, 1) for id_ in (10, 9)]
    if isinstance(kind, StringType):
        rows = [row | {"id": str(row["id"])} for row in rows]
    part = stage(store, epoch, rows)
    _assert_9_is_locked_before_10(schema, store, epoch, part)
    store.close()


@pytest.mark.parametrize("keys", ["id,name", "ID,name", "id,NAME"])
def test_the_order_of_keys_is_the_tables_however_they_are_spelled(
    schema: Schema, keys: str
) -> None:
    schema.execute("CREATE TABLE target (id bigint, name text, at bigint, PRIMARY KEY (id, name))")
    schema.execute("INSERT INTO target VALUES (9, 'b', 0), (10, 'a', 0)")
    id_, name = keys.split(",")
    fields = StructType([StructField(id_, LongType()), StructField(name, StringType()), AT])
    store, epoch = schema.open(fields, **UPSERT)
    part = stage(store, epoch, [{id_: 10, name: "a", "at": 1}, {id_: 9, name: "b", "at": 1}])
    _assert_9_is_locked_before_10(schema, store, epoch, part)
    store.close()


def test_deletes_and_inserts_are_locked_in_one_order(schema: Schema) -> None:
    from deliver.test_postgres_rows import CHANGES, UPSERTS, changes

    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text, at bigint)")
    schema.execute("INSERT INTO target VALUES (9, 'a', 0), (10, 'a', 0)")
    store, epoch = schema.open(CHANGES, **UPSERTS)
    part = stage(store, epoch, changes((10, None, 1, True), (9, "b", 1, False)))
    with ThreadPoolExecutor(1) as pool, schema.connect() as other:
        other.execute("SELECT FROM target WHERE id = 9 FOR UPDATE")
        transaction = store.begin(epoch)
        loaded = pool.submit(transaction.load, [part])
        wait_until(lambda: waits(schema))
        other.execute("SELECT FROM target WHERE id = 10 FOR UPDATE NOWAIT")
        other.rollback()
        assert loaded.result().records == 2
        transaction.commit()
    assert schema.rows() == [(9, "b")]
    store.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def waits(schema: Schema) -> bool:
    """Whether a pipeline of this test waits for a lock."""
    (mark, *_), *_ = schema.rows("relname", "pg_class WHERE relname LIKE 'sparkonce_%'")
    waiting = f"pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema.name}%'"
    return bool(mark) and schema.rows("count(*)", waiting) != [(0,)]


@pytest.mark.parametrize("dead", [{}, {"dead": "dead"}], ids=["at once", "searched"])
def test_rows_without_an_order_are_tried_again_after_a_deadlock(
    schema: Schema, dead: dict[str, str]
) -> None:
    """The pipeline's backend waits for the other's row first, and looks for a deadlock first; the
    other one does not look at all."""
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text)")
    store, epoch = schema.open(**dead)
    rows = [{"id": id_, "name": "a"} for id_ in (10, 9)]
    if dead:
        # One that is refused, so that they are tried in pieces.
        schema.execute("INSERT INTO target VALUES (8, 'a')")
        rows = [row | ASIDE for row in (*rows, {"id": 8, "name": "b"})]
    part = stage(store, epoch, rows)
    with ThreadPoolExecutor(2) as pool, schema.connect() as other:
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("INSERT INTO target VALUES (9, 'other')")
        transaction = store.begin(epoch)
        loaded = pool.submit(transaction.load, [part])
        wait_until(lambda: waits(schema))
        other.execute(
            "INSERT INTO target VALUES (10, 'other')"
        )  # waits until the deadlock is found
        other.rollback()
        assert loaded.result().records == 2
        transaction.commit()
    assert [row for row in schema.rows() if row[0] > 8] == [(9, "a"), (10, "a")]
    store.close()


# -- what it needs ------------------------------------------------------------------------------


@pytest.fixture
def user(schema: Schema) -> Iterator[dict[str, str]]:
    """Who may do nothing but connect: not even make temporary tables."""
    schema.execute("REVOKE TEMP ON DATABASE postgres FROM PUBLIC")
    with user_with_a_schema(schema, f"{schema.name}_user") as login:
        yield login
    schema.execute("GRANT TEMP ON DATABASE postgres TO PUBLIC")


@pytest.fixture
def other_user(schema: Schema) -> Iterator[dict[str, str]]:
    with user_with_a_schema(schema, f"{schema.name}_other") as login:
        yield login


@contextmanager
def user_with_a_schema(schema: Schema, name: str) -> Iterator[dict[str, str]]:
    schema.execute(f"CREATE USER {name} PASSWORD 'secret'")
    schema.execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    yield {"user": name, "password": "secret"}
    schema.execute(f"DROP OWNED BY {name} CASCADE")
    schema.execute(f"DROP USER {name}")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_privileges_that_are_listed_suffice(
    schema: Schema, user: dict[str, str], mode: str
) -> None:
    """Tables that are there already, and a schema for the stage."""
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text)")
    name = user["user"]
    admin = schema.store(dead="dead")
    admin.prepare()
    admin.close()
    store = schema.store(stagingSchema=name, dead="dead", writeMode=mode, keyColumns="id", **user)
    with pytest.raises(ConfigError, match="permission denied"):
        store.prepare()
    schema.execute(f"GRANT USAGE ON SCHEMA {schema.name} TO {name}")
    rights = "INSERT" if mode == "append" else "SELECT, INSERT, UPDATE"
    schema.execute(f"GRANT {rights} ON target TO {name}")
    schema.execute(f"GRANT SELECT, INSERT, UPDATE ON ledger TO {name}")
    schema.execute(f"GRANT INSERT ON dead TO {name}")
    store.prepare()
    epoch = store.take_over().epoch
    assert write(store, epoch, [ROW | ASIDE]).records == 1
    store.close()


def test_a_pipeline_moves_to_another_user(
    schema: Schema, user: dict[str, str], other_user: dict[str, str]
) -> None:
    """While its former driver is paused in mid-transaction, which only who may signal it ends."""
    schema.execute(TABLE)
    admin = schema.store()
    admin.prepare()
    admin.close()
    stores = []
    for login in (user, other_user):
        name = login["user"]
        schema.execute(f"GRANT USAGE ON SCHEMA {schema.name} TO {name}")
        schema.execute(f"GRANT INSERT ON target TO {name}")
        schema.execute(f"GRANT SELECT, INSERT, UPDATE ON ledger TO {name}")
        stores.append(schema.store(stagingSchema=name, **SOON, **login))
        stores[-1].prepare()
    former, store = stores
    epoch = former.take_over().epoch
    paused = former.begin(epoch)
    with pytest.raises(StoreError, match="pg_signal_backend"):
        store.take_over()
    schema.execute(f"GRANT pg_signal_backend TO {other_user['user']}")
    assert store.take_over().epoch == epoch + 1
    assert write(store, epoch + 1, [ROW]).records == 1
    paused.rollback()
    former.close()
    store.close()


def test_a_schema_to_stage_in(schema: Schema, user: dict[str, str]) -> None:
    schema.execute(TABLE)
    with pytest.raises(ConfigError, match="no schema 'nowhere'"):
        schema.store(stagingSchema="nowhere").prepare()
    store, epoch = schema.open(stagingSchema=user["user"])
    assert write(store, epoch, [ROW]).records == 1
    where = "pg_tables WHERE tablename ~ '^sparkonce_[0-9a-f]{12}'"
    assert (user["user"],) in schema.rows("schemaname", where)
    assert (schema.name,) not in schema.rows("schemaname", where)
    store.close()


def test_a_table_in_a_later_schema_of_the_search_path(schema: Schema, user: dict[str, str]) -> None:
    """None is made beside it."""
    schema.execute("CREATE TABLE somewhere (id bigint, name text)")
    url = f"{schema.url}?options=-csearch_path%3D{user['user']},{schema.name}"
    store = schema.store(url=url, dbtable="somewhere", createTable="true")
    store.prepare()
    assert write(store, store.take_over().epoch, [ROW]).records == 1
    assert schema.rows(table="somewhere") == [(1, "a")]
    assert schema.rows("schemaname", "pg_tables WHERE tablename = 'somewhere'") == [(schema.name,)]
    store.close()
    # One that is nowhere is made in the first.
    store = schema.store(url=url, dbtable="fresh", createTable="true")
    store.prepare()
    assert schema.rows("schemaname", "pg_tables WHERE tablename = 'fresh'") == [(user["user"],)]
    store.close()


@pytest.mark.parametrize("name", ["Ärger", "ÅNGSTRÖM", '"Ärger"', "Target"])
def test_names_are_folded_as_the_server_folds_them(schema: Schema, name: str) -> None:
    """Or a table would be made beside the one that is meant."""
    schema.execute(f"CREATE TABLE {name} (id bigint, name text)")
    store = schema.store(dbtable=f"{schema.name}.{name}", createTable="true")
    assert schema.write(store, [ROW]).records == 1
    assert schema.rows(table=name) == [(1, "a")]


def test_names_may_have_a_percent_sign(schema: Schema) -> None:
    """In the schema, and so in what is there of the pipeline; a batch job drops its stage, too."""
    name = f"{schema.name}_100%s%"
    schema.execute(f'CREATE SCHEMA "{name}"')
    try:
        options = {"dbtable": f'"{name}"."t%"', "ledgerTable": '"l%"', "deadLetterTable": '"d%"'}
        store, epoch = schema.open(createTable="true", runId="%", **options)
        part = stage(store, epoch, [ROW | ASIDE, ROW | ASIDE | {"name": "\0"}])
        transaction = store.begin(epoch)
        assert transaction.load([part]) == Loaded(1, 1)
        transaction.note(ENTRY, SOURCES)
        transaction.commit()
        store.discard(epoch, 1)
        assert store.holder().entry == ENTRY
        store.close()
        assert schema.rows(table=f'"{name}"."t%"') == [(1, "a")]
        made = f"pg_tables WHERE schemaname = '{name}'"
        assert schema.rows("tablename", made) == [("d%",), ("l%",), ("t%",)]
    finally:
        schema.execute(f'DROP SCHEMA "{name}" CASCADE')


def test_a_name_in_the_url_gives_way_to_ours(schema: Schema) -> None:
    """By which a former driver's connections are told."""
    schema.execute(TABLE)
    url = f"{schema.url}?application_name=payments"
    store, epoch = schema.open(url=url)
    assert write(store, epoch, [ROW]).records == 1
    names = schema.rows("application_name", "pg_stat_activity WHERE datname = 'postgres'")
    assert ("payments",) not in names
    store.close()


# -- columns that came between two runs -----------------------------------------------------------

MORE = StructType([ID, NAME, StructField("more", LongType())])


def test_a_column_that_is_new_in_the_dataframe(schema: Schema) -> None:
    schema.execute(TABLE)
    with pytest.raises(ConfigError, match=r"no column more.*mergeSchema"):
        schema.store(MORE).prepare()
    store, epoch = schema.open(MORE, mergeSchema="true")
    write(store, epoch, [ROW | {"more": 5}])
    assert schema.rows("id, name, more") == [(1, "a", 5)]
    store.close()


def test_a_column_that_is_new_in_the_table(schema: Schema) -> None:
    schema.execute(TABLE)
    store, epoch = schema.open()
    schema.execute("ALTER TABLE target ADD COLUMN more bigint DEFAULT 7")
    write(store, epoch, [ROW])
    store.close()
    store, epoch = schema.open()
    write(store, epoch, [ROW])
    assert schema.rows("id, name, more") == [(1, "a", 7), (1, "a", 7)]
    store.close()


UPPER = StructType([StructField("ID", LongType()), StructField("Name", StringType())])


@pytest.mark.parametrize("options", [{}, {"mergeSchema": "true"}])
def test_names_are_the_same_in_any_case(schema: Schema, options: dict[str, str]) -> None:
    """As to Spark: none is added beside another, and the table's spelling is written."""
    schema.execute('CREATE TABLE target (id bigint PRIMARY KEY, "NAME" text, kept int DEFAULT 7)')
    upsert = {"writeMode": "upsert", "keyColumns": "Id", "sequenceBy": "id"}
    store, epoch = schema.open(UPPER, **upsert, **options)
    write(store, epoch, [{"ID": 1, "Name": "a", SEQUENCE: 1}, {"ID": 1, "Name": "b", SEQUENCE: 2}])
    write(store, epoch, [{"ID": 1, "Name": "c", SEQUENCE: 3}], 2)
    store.close()
    assert schema.rows("*") == [(1, "c", 7)]


def test_a_name_that_may_be_several(schema: Schema) -> None:
    schema.execute('CREATE TABLE target (id bigint, "NAME" text, "Name" text)')
    with pytest.raises(ConfigError, match="may be any of NAME, Name"):
        schema.store(mergeSchema="true").prepare()
    store, epoch = schema.open(UPPER)  # one of them exactly
    write(store, epoch, [{"ID": 1, "Name": "a"}])
    store.close()
    assert schema.rows("*") == [(1, None, "a")]


NOTHING_MADE = "pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"


@pytest.mark.parametrize(
    "options",
    [
        {"writeMode": "upsert", "keyColumns": "name"},  # which is not unique
        {"stagingSchema": "pg_catalog"},
    ],
    ids=["keys", "stage"],
)
def test_nothing_is_added_before_all_checks_have_passed(
    schema: Schema, options: dict[str, str]
) -> None:
    schema.execute(TABLE)
    with pytest.raises(ConfigError):
        schema.store(MORE, mergeSchema="true", dead="dead", **options).prepare()
    assert schema.rows("relname", NOTHING_MADE) == [("target",)]
    columns = "pg_attribute WHERE attrelid = 'target'::regclass AND attnum > 0"
    assert schema.rows("attname", columns) == [("id",), ("name",)]
    assert schema.rows("count(*)", "pg_locks WHERE locktype = 'advisory'") == [(0,)]
