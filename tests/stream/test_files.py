"""Files into Kafka: each once, and one that changes after it was listed is noticed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pyspark.sql import SparkSession

import oracle
import sparkonce
from sparkonce.local import LocalKafka
from sparkonce.stream.checkpoint import Listed, Planned
from sparkonce.stream.files import FileChanged, ListedFiles


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

    told = {
        "gone": r"a file is gone since it was listed \(File file:.*/0\.json does not exist\)",
        "changed": r"0\.json was changed after it was listed",
    }
    with pytest.raises(Exception, match=told[how]):
        run(spark, kafka, topic, tmp_path, disturb)
    assert values(kafka, topic) == []


ODD_NAMES = ["a b", "a,b", "ä#?", "50%20", "{x}", "a+b;c=d&e"]


class OneSource:
    """A checkpoint in which a file source has listed these files, and nothing else is there."""

    def __init__(self, listed: list[Listed]) -> None:
        self._listed = listed

    def planned(self, _: int) -> Planned:
        return Planned(0, ())

    def listed_files(self, _source: int, _number: int) -> Iterator[Listed]:
        return iter(self._listed)


def test_many_files_take_no_more_calls_than_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*ODD_NAMES, *map(str, range(300))]:
        put(tmp_path, f"{name}.json", ["a"])
    paths = spark.read.text(str(tmp_path)).inputFiles()
    assert len(paths) == 306
    listed = [Listed(path, Path(unquote(urlsplit(path).path)).stat().st_mtime_ns // 10**6)
              for path in paths]  # fmt: skip
    client: Any = type(spark.sparkContext._gateway._gateway_client)
    calls: list[str] = []
    send = client.send_command

    def counted(self: Any, command: str, *rest: Any, **more: Any) -> Any:
        calls.append(command)
        return send(self, command, *rest, **more)

    monkeypatch.setattr(client, "send_command", counted)

    def checked(some: list[Listed]) -> int:
        calls.clear()
        folder: Any = OneSource(some)
        ListedFiles(spark, folder).check(0, ['{"logOffset": 0}'])
        return sum(not call.startswith("m") for call in calls)  # m: memory, by Python's collector

    checked(listed[:1])
    assert 0 < checked(listed[:1]) == checked(listed) < 100
    late = [*listed[:-1], Listed(listed[-1].path, 1)]
    with pytest.raises(FileChanged, match="was changed after it was listed"):
        checked(late)
