"""PostgreSQL as a store, read back by its own client."""

from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from sparkonce.deliver.conformance import Conformance
from sparkonce.deliver.postgres import target
from sparkonce.deliver.target import TableTarget
from sparkonce.local import LocalPostgres


class PostgresSchema:
    supports_dead_letters = True

    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema

    def target(self, **options: str) -> TableTarget:
        given = {
            "url": self.url,
            "dbtable": f"{self.schema}.target",
            "createTable": "true",
            "ledgerTable": f"{self.schema}.ledger",
        }
        if dead := options.pop("deadLetterTable", None):
            given["deadLetterTable"] = f"{self.schema}.{dead}"
        return target({"pipeline": f"{self.schema}-payments"} | given | options, None)

    def rows(self, table: str = "target") -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {self.schema}.{table}").fetchall()

    def staged(self) -> int:
        with psycopg.connect(self.url) as connection:
            tables = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE %s",
                (self.schema, "sparkonce_%"),
            ).fetchall()
            attempts = "SELECT DISTINCT _task >> 23 FROM"
            return sum(
                len(connection.execute(f"{attempts} {self.schema}.{name}").fetchall())
                for (name,) in tables
                if name != "sparkonce_ledger"
            )


class TestPostgres(Conformance):
    @pytest.fixture
    def database(self, postgres: LocalPostgres, postgres_schema: str) -> PostgresSchema:
        return PostgresSchema(postgres.url, postgres_schema)
