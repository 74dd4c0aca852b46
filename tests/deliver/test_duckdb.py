"""DuckDB as a store, read back by its own client."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkonce.deliver.conformance import Conformance
from sparkonce.deliver.duckdb import target
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
