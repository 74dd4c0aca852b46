"""How many connections PostgreSQL's sink holds, and for how long; and that poolers take them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from pyspark.sql import SparkSession

import sparkonce
from deliver.postgres_schema import Schema, write
from deliver.test_postgres_locks import ROW, TABLE, wait_until
from pooler import Pooler
from sparkonce.deliver.postgres import stage
from sparkonce.deliver.store import StoreError
from sparkonce.errors import ConfigError
from sparkonce.local import LocalPostgres
from sparkonce.stream.report import BatchReport

OURS = "pg_stat_activity WHERE application_name ~ '^sparkonce_[0-9a-f]{12}_tasks'"

_others: set[tuple[int]] = set()


@pytest.fixture(autouse=True)
def _none_is_left(schema: Schema) -> Iterator[None]:
    """By tests that ran before in this process."""
    for _, timer in [*stage._connections._kept.values()]:
        timer.cancel()
        timer.function(*timer.args)
    # Spark's workers may keep some for a while: they are of other pipelines.
    _others.clear()
    _others.update(schema.rows("pid", OURS))
    yield


def ours(schema: Schema) -> set[tuple[int]]:
    return set(schema.rows("pid", OURS)) - _others


def held(schema: Schema) -> int:
    return len(ours(schema))


def test_a_connection_is_kept_from_task_to_task_and_closed_when_idle(schema: Schema) -> None:
    schema.execute(TABLE)
    pids = set()
    store, epoch = schema.open(idleTimeout="1h")
    for attempt in (1, 2, 3):
        write(store, epoch, [ROW], attempt)
        pids |= ours(schema)
    store.close()
    assert len(pids) == 1
    ((_, timer),) = stage._connections._kept.values()
    assert timer.interval == 3600
    timer.cancel()
    timer.function(*timer.args)  # as when the time has passed
    wait_until(lambda: held(schema) == 0)


def test_one_that_is_idle_for_as_long_as_is_set_is_closed(schema: Schema) -> None:
    schema.execute(TABLE)
    store, epoch = schema.open(idleTimeout="50ms")
    write(store, epoch, [ROW])
    wait_until(lambda: held(schema) == 0)
    # The next task makes another.
    assert write(store, epoch, [ROW], 2).records == 1
    store.close()
    wait_until(lambda: held(schema) == 0)


def test_a_process_keeps_those_of_a_few_pipelines_only(schema: Schema) -> None:
    schema.execute(TABLE)
    for number in range(7):
        store, epoch = schema.open(pipeline=f"{schema.name}-{number}")
        write(store, epoch, [ROW])
        store.close()
    wait_until(lambda: held(schema) == 4)


@pytest.mark.parametrize("text", ["10", "-1s", "soon"])
def test_idle_times_that_are_none(schema: Schema, text: str) -> None:
    with pytest.raises(ConfigError, match="idleTimeout"):
        schema.store(idleTimeout=text)


@pytest.mark.parametrize("tasks", [1, 2])
def test_as_many_tasks_write_as_are_allowed(
    spark: SparkSession, postgres: LocalPostgres, schema: Schema, tasks: int
) -> None:
    reports: list[BatchReport] = []

    class Listener:
        def on_batch(self, report: BatchReport) -> None:
            reports.append(report)

    (
        sparkonce.write(spark.range(0, 1000, 1, numPartitions=6))
        .format("postgres")
        .option("url", postgres.url)
        .option("dbtable", f"{schema.name}.target")
        .option("ledgerTable", f"{schema.name}.ledger")
        .option("createTable", "true")
        .option("numPartitions", str(tasks))
        .option("idleTimeout", "0s")
        .option("pipeline", schema.name)
        .option("runId", uuid.uuid4().hex)
        .listener(Listener())
        .save()
    )
    assert schema.rows("count(*)") == [(1000,)]
    assert [report.tasks for report in reports] == [tasks]
    wait_until(lambda: held(schema) == 0)


def test_the_driver_has_two_and_lets_go_of_them(schema: Schema) -> None:
    schema.execute(TABLE)
    drivers = "pg_stat_activity WHERE application_name ~ '^sparkonce_[0-9a-f]{12}_(driver|writer)$'"
    before = schema.rows("count(*)", drivers)[0][0]
    store, epoch = schema.open()
    write(store, epoch, [ROW])
    assert schema.rows("count(*)", drivers) == [(before + 2,)]
    store.close()
    wait_until(lambda: schema.rows("count(*)", drivers) == [(before,)])


def test_a_connection_that_was_ended_meanwhile_is_made_anew(schema: Schema) -> None:
    schema.execute(TABLE)
    store, epoch = schema.open()
    write(store, epoch, [ROW])
    with psycopg.connect(schema.url) as other:
        other.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM {OURS}")
    assert write(store, epoch, [ROW], 2).records == 1
    store.close()


# -- behind a pooler ------------------------------------------------------------------------------


def test_a_connection_begins_with_nothing_that_a_pooler_refuses(
    postgres: LocalPostgres, schema: Schema
) -> None:
    """Neither a driver's nor a task's, nor that which asks about characters."""
    schema.execute(TABLE)
    with Pooler(postgres.port) as pooler:
        store, epoch = schema.open(url=pooler.before(postgres.url))
        assert write(store, epoch, [ROW]).records == 1
        store.close()
    names = {each["application_name"].rpartition("_")[2] for each in pooler.startups}
    assert names == {"driver", "writer", "tasks"}
    assert not pooler.refused


def test_what_a_user_wants_and_the_pooler_refuses_is_told(
    postgres: LocalPostgres, schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkonce.deliver.postgres.connection.PATIENCE_S", 0)
    with Pooler(postgres.port) as pooler:
        url = pooler.before(postgres.url) + "?options=-csearch_path%3Dpublic"
        with pytest.raises(StoreError, match="unsupported startup parameter: options"):
            schema.open(url=url)


def test_a_session_is_left_as_it_was(schema: Schema) -> None:
    """Behind a pooler it is somebody else's next."""
    schema.execute(TABLE)
    store, epoch = schema.open()
    write(store, epoch, [ROW])
    for connection in (store._driver.connection(), store._writer.connection()):
        changed = "SELECT name, setting FROM pg_settings WHERE source = 'session'"
        assert connection.execute(changed).fetchall() == []
        assert connection.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
    store.close()
