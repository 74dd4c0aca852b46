"""Tables to deliver into, of every kind, each read by its database's own client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
from psycopg.rows import dict_row

import delta_log


@dataclass(frozen=True)
class PostgresTable:
    url: str
    schema: str
    format = "postgres"
    named_by = "pipeline"

    def options(self) -> dict[str, str]:
        return {
            "url": self.url,
            "dbtable": f"{self.schema}.target",
            "ledgerTable": f"{self.schema}.ledger",
            "createTable": "true",
        }

    @property
    def dead(self) -> str:
        return f"{self.schema}.dead"

    def rows(self, table: str = "target") -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {self.schema}.{table}").fetchall()

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(statement.replace("target", f"{self.schema}.target"))


@dataclass(frozen=True)
class DuckDBTable:
    path: Path
    format = "duckdb"
    named_by = "pipeline"
    dead = "dead"

    def options(self) -> dict[str, str]:
        return {"path": str(self.path), "dbtable": "target", "createTable": "true"}

    def rows(self, table: str = "target") -> list[dict[str, Any]]:
        with duckdb.connect(str(self.path)) as connection:
            return connection.sql(f"SELECT * FROM {table}").to_arrow_table().to_pylist()

    def execute(self, statement: str) -> None:
        with duckdb.connect(str(self.path)) as connection:
            connection.execute(statement)


@dataclass(frozen=True)
class DeltaTable:
    path: Path
    format = "delta"
    named_by = "txnAppId"
    dead = None

    def options(self) -> dict[str, str]:
        return {"path": str(self.path), "createTable": "true"}

    def rows(self, table: str = "target") -> list[dict[str, Any]]:
        return delta_log.rows(self.path)


Table = PostgresTable | DuckDBTable | DeltaTable
