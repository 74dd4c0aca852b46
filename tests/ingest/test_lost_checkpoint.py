"""A table's stream whose checkpoint is gone: it goes on from the ledger in Kafka."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkonce
from oracle import values
from sparkonce.local import LocalKafka
from sparkonce.stream.checkpoint import CheckpointFolder
from sparkonce.stream.ledger import LedgerError


@dataclass(frozen=True)
class Stream:
    """Of a table of numbers into a topic of the same name."""

    spark: SparkSession
    kafka: LocalKafka
    name: str
    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def insert(self, count: int) -> None:
        with closing(sqlite3.connect(self.folder / "a.db", isolation_level=None)) as writer:
            writer.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY)")
            for _ in range(count):
                writer.execute("INSERT INTO t DEFAULT VALUES")

    def rows(self) -> DataFrame:
        options = {"url": f"sqlite://{self.folder / 'a.db'}", "dbtable": "t", "keyColumn": "id"}
        source = self.spark.readStream.format("sparkonce_table").options(**options)
        return source.option("maxRowsPerBatch", 2).load().selectExpr("cast(id as string) value")

    def run(self, rows: DataFrame | None = None) -> None:
        query = (
            sparkonce.write_stream(rows or self.rows())
            .option("kafka.bootstrap.servers", self.kafka.bootstrap_servers)
            .option("kafka.transactional.id", self.name)
            .option("topic", self.name)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)

    def written(self) -> list[int]:
        return sorted(int(value) for value in values(self.kafka.bootstrap_servers, self.name))


@pytest.fixture
def stream(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(spark, kafka, f"lost-{uuid.uuid4().hex[:8]}", tmp_path)
    made.insert(5)
    kafka.create_topic(made.name, 2)
    yield made
    kafka.delete_topic(made.name)


def test_it_goes_on_from_the_ledger(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.run()
    shutil.rmtree(stream.checkpoint)
    stream.insert(3)
    with monkeypatch.context() as patch:
        # It dies in between, once.
        patch.setattr(CheckpointFolder, "begin_behind", _die)
        with pytest.raises(OSError, match="in between"):
            stream.run()
    stream.run()
    assert stream.written() == list(range(1, 9))
    stream.insert(1)
    stream.run()
    shutil.rmtree(stream.checkpoint)
    stream.insert(1)
    stream.run()
    assert stream.written() == list(range(1, 11))


def _die(*_: object) -> None:
    raise OSError("in between")


def test_state_is_not_taken_for_empty(stream: Stream) -> None:
    stream.run(stream.rows().dropDuplicates(["value"]))
    shutil.rmtree(stream.checkpoint)
    with pytest.raises(LedgerError, match="its state was in the checkpoint"):
        stream.run(stream.rows().dropDuplicates(["value"]))
