"""Kafka to Delta through Spark: what is left in the table's folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import delta_log
from deliver.tables import DeltaTable
from deliver.test_streams import Job
from sparkonce.local import LocalKafka


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "table")


def test_nothing_but_the_table_stays(
    spark: SparkSession, kafka: LocalKafka, topic: str, table: DeltaTable, tmp_path: Path
) -> None:
    job = Job(spark, kafka, topic, table)
    expected = job.fill(0, 100)
    job.run(tmp_path / "c")
    assert job.values() == expected
    assert {path.name for path in table.path.iterdir()} == {
        "_delta_log",
        *delta_log.live(table.path),
    }
    versions = delta_log.versions(table.path, job.topic)
    assert versions == list(range(1, len(versions) + 1))
