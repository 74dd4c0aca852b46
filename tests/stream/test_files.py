"""Files into Kafka: each once, and one that changes after it was listed is noticed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import oracle
import sparkonce
from sparkonce.local import LocalKafka


@pytest.fixture
def topic(kafka: LocalKafka, tmp_path: Path) -> str:
    name = f"files-{tmp_path.name}"
    kafka.create_topic(name, partitions=2)
    return name


def put(folder: Path, name: str, values: list[str]) -> None:
    draft = folder.parent / name
    draft.write_text("\n".join(json.dumps({"value": value}) for value in values))
    draft.rename(folder / name)


def run(
    spark: SparkSession,
    kafka: LocalKafka,
    topic: str,
    tmp_path: Path,
    observe: Callable[[str], None] | None = None,
) -> None:
    rows = (
        spark.readStream.schema("value string")
        .option("maxFilesPerTrigger", 1)
        .json(str(tmp_path / "in"))
    )
    writer = (
        sparkonce.write_stream(rows)
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("topic", topic)
        .option("kafka.transactional.id", topic)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
    )
    (writer.observe(observe) if observe else writer).start().awaitTermination()


def values(kafka: LocalKafka, topic: str) -> list[str]:
    return sorted(each.value.decode() for each in oracle.read(kafka.bootstrap_servers, topic))


def test_each_file_once(spark: SparkSession, kafka: LocalKafka, topic: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    # More files than Spark keeps before it packs their list together.
    for number in range(12):
        put(tmp_path / "in", f"{number:02}.json", [f"{number:02}-a", f"{number:02}-b"])
    run(spark, kafka, topic, tmp_path)
    put(tmp_path / "in", "12.json", ["12-a", "12-b"])
    run(spark, kafka, topic, tmp_path)
    assert values(kafka, topic) == [f"{n:02}-{letter}" for n in range(13) for letter in "ab"]


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_file_that_is_not_what_was_listed(
    spark: SparkSession, kafka: LocalKafka, topic: str, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "0.json", ["a"])
    path = str(folder / "0.json")

    def disturb(point: str) -> None:
        if point == "produce:last":  # read, and not yet decided
            if how == "gone":
                Path(path).unlink()
            else:
                os.utime(path, (1, 1))

    with pytest.raises(Exception, match=r"0\.json (was changed after|is gone since) it was listed"):
        run(spark, kafka, topic, tmp_path, disturb)
    assert values(kafka, topic) == []
