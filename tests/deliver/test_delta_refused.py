"""What Delta does not take: rows, tables and options, each with a message that says why."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StringType, StructField

import delta_log
from deliver.delta_folder import FIELDS, UPSERTS, DeltaFolder, ids, stage, write
from sparkonce.deliver.delta import target
from sparkonce.deliver.store import RowsRefused
from sparkonce.errors import ConfigError


@pytest.fixture
def database(tmp_path: Path) -> DeltaFolder:
    return DeltaFolder(tmp_path)


def test_constraints(database: DeltaFolder) -> None:
    store, epoch = database.open()
    database.table().alter.add_constraint({"small": "id < 100"})
    write(store, epoch, [1], 1)
    with pytest.raises(RowsRefused, match="100"):
        write(store, epoch, [2, 100], 2)
    held = store.holder().entry
    assert held is not None
    assert (ids(database), held.number) == ([1], 1)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_keys_are_not_null(database: DeltaFolder, mode: str) -> None:
    store, epoch = database.open(writeMode=mode, keyColumns="id")
    assert [field["nullable"] for field in delta_log.schema(database.path)] == [False, True]
    part = stage(store, epoch, [{"id": 1, "name": "a"}, {"id": None, "name": "b"}])
    with pytest.raises(RowsRefused, match="id"):
        store.begin(epoch).load([part])
    assert database.rows() == []


@pytest.mark.parametrize("name", ["txnVersion", "pipeline", "dbtable", "ledgerTable"])
def test_options_that_are_not_for_delta(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        target({"txnAppId": "p", "path": "t", name: "1"}, None)


def test_the_pipeline_is_named_by_the_application(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="txnAppId"):
        target({"path": str(tmp_path)}, None)
    assert target({"path": str(tmp_path)}, "query").settings.pipeline == "query"
    assert target({"path": str(tmp_path), "txnAppId": "a"}, "query").settings.pipeline == "a"


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_local_paths(tmp_path: Path, form: str) -> None:
    database = DeltaFolder(tmp_path)
    database.open(path=form.format(database.path))
    assert delta_log.versions(database.path, "payments") == [1]


@pytest.mark.parametrize("path", ["s3://bucket/t", "hdfs://h/t", "dbfs:/t", "file://h/t"])
def test_paths_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="path="):
        target({"txnAppId": "p", "path": path}, None)


def test_only_what_fits_is_taken(database: DeltaFolder) -> None:
    fields = pa.schema([("id", pa.int32()), ("name", pa.string())])
    DeltaTable.create(database.path, fields)
    with pytest.raises(ConfigError, match=r"'id' is of type bigint, and of type int"):
        database.open()
    needed = FIELDS.append(pa.field("needed", pa.string(), nullable=False))
    DeltaTable.create(database.path, needed, mode="overwrite")
    with pytest.raises(ConfigError, match="NOT NULL"):
        database.store().prepare()
    database.store(StructField("needed", StringType())).prepare()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.appendOnly", "true"),
        ("delta.setTransactionRetentionDuration", "interval 1 days"),
    ],
)
def test_properties_that_promises_break_on(database: DeltaFolder, name: str, value: str) -> None:
    DeltaTable.create(database.path, FIELDS, configuration={name: value})
    with pytest.raises(ConfigError, match=name):
        database.open(**UPSERTS)
