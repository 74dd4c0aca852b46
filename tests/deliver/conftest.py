"""A table of every kind, and a topic to fill it from."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliver.postgres_schema import Schema
from deliver.tables import DeltaTable, DuckDBTable, PostgresTable, Table
from sparkonce.local import LocalKafka, LocalPostgres


@pytest.fixture(params=["duckdb", "postgres", "delta"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param == "duckdb":
        return DuckDBTable(tmp_path / "warehouse.duckdb")
    if request.param == "delta":
        return DeltaTable(tmp_path / "table")
    server = request.getfixturevalue("postgres")
    return PostgresTable(server.url, request.getfixturevalue("postgres_schema"))


@pytest.fixture
def topic(kafka: LocalKafka) -> Iterator[str]:
    name = f"d-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, partitions=2)
    yield name
    kafka.delete_topic(name)


@pytest.fixture
def schema(postgres: LocalPostgres, postgres_schema: str) -> Schema:
    return Schema(postgres.url, postgres_schema)
