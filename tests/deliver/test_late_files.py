"""A zombie's task writes a file into its stage while its successor takes over and removes that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deliver.delta_folder import DeltaFolder
from sparkonce.deliver import duckdb
from sparkonce.deliver.conformance import SCHEMA
from sparkonce.deliver.store import Store
from sparkonce.deliver.target import TableTarget

ROWS = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int64()), "name": ["a"]})


@pytest.fixture(params=["duckdb", "delta"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> TableTarget:
    if request.param == "delta":
        return DeltaFolder(tmp_path).target()
    given = {"path": str(tmp_path / "w.duckdb"), "dbtable": "target", "createTable": "true"}
    return duckdb.target(given | {"pipeline": "payments"}, None)


def opened(made: TableTarget) -> Store:
    columns = made._columns(SCHEMA)
    store = made.open_store(made.settings, columns)
    store.prepare()
    return store


def late(tmp_path: Path) -> list[Path]:
    return list(tmp_path.rglob("late.parquet"))


def test_its_successor_takes_over_all_the_same(
    made: TableTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = opened(made)
    epoch = zombie.take_over().epoch
    zombie.stage(epoch, 1)(1, ROWS.schema, iter([ROWS]))
    rmdir = os.rmdir

    def write_and_remove(path: Any, **given: Any) -> None:
        if Path(path).is_absolute():  # the attempt's folder, after what was in it
            Path(path, "late.parquet").touch()
        rmdir(path, **given)

    successor = opened(made)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", write_and_remove)
        held = successor.take_over()
        assert len(late(tmp_path)) == 1
        successor.stage(held.epoch, 1)
        successor.discard(held.epoch, 1)
    assert held.epoch > epoch
    assert opened(made).take_over().epoch > held.epoch
    assert late(tmp_path) == []
