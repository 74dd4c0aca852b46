"""DuckDB as a store, read back by its own client."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkonce.deliver.columns import Columns
from sparkonce.deliver.conformance import SCHEMA, Conformance
from sparkonce.deliver.duckdb import target
from sparkonce.deliver.store import Part
from sparkonce.deliver.target import TableTarget


class DuckDBFile:
    supports_dead_letters = True

    def __init__(self, folder: Path) -> None:
        self.path = folder / "warehouse.duckdb"

    def target(self, **options: str) -> TableTarget:
        given = {"path": str(self.path), "dbtable": "target", "createTable": "true"}
        return target({"pipeline": "payments"} | given | options, None)

    def rows(self, table: str = "target") -> list[dict[str, Any]]:
        with duckdb.connect(str(self.path)) as connection:
            return connection.sql(f"SELECT * FROM {table}").to_arrow_table().to_pylist()

    def staged(self) -> int:
        return len(list(Path(f"{self.path}.staging").glob("*")))


class TestDuckDB(Conformance):
    @pytest.fixture
    def database(self, tmp_path: Path) -> DuckDBFile:
        return DuckDBFile(tmp_path)


def test_rows_of_parquet_are_filtered_right(tmp_path: Path) -> None:
    """Version 2.0.0 gave out both rows, the second without its text."""
    schema = pa.schema([("id", pa.int64()), ("why", pa.string())])
    rows = pa.Table.from_pylist([{"id": 1, "why": None}, {"id": 2, "why": "bad"}], schema=schema)
    pq.write_table(rows, tmp_path / "rows.parquet", use_dictionary=False)
    found = duckdb.sql(f"SELECT id FROM '{tmp_path}/rows.parquet' WHERE why IS NULL")
    assert found.fetchall() == [(1,)]


def test_folders_that_look_like_columns_are_none(tmp_path: Path) -> None:
    """A stage below `name=other` must not give its rows another name."""
    made = DuckDBFile(tmp_path).target(stagingLocation=str(tmp_path / "name=other"))
    columns = Columns.plan(SCHEMA, made.settings, type_of=made.type_of, nested_as_json=False)
    store = made.open_store(made.settings, columns)
    store.prepare()
    epoch = store.take_over().epoch
    batch = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int64()), "name": ["own"]})
    part = Part(1, store.stage(epoch, 1)(1, batch.schema, iter([batch])), 1, batch.nbytes)
    transaction = store.begin(epoch)
    transaction.load([part])
    transaction.commit()
    store.close()
    assert DuckDBFile(tmp_path).rows() == [{"id": 1, "name": "own"}]
