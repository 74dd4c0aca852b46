"""Spark's checkpoint, read and finished: as files and through Hadoop, for Spark itself to read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkonce.stream.checkpoint import Checkpoint, CheckpointFolder, Planned
from sparkonce.stream.checkpoint_files import HadoopFiles, LocalFiles
from sparkonce.stream.ledger import LedgerError

Open = Callable[[Path], CheckpointFolder]


@pytest.fixture(params=["local", "hadoop"])
def at(request: pytest.FixtureRequest, spark: SparkSession) -> Open:
    """A folder as it is opened on this machine, or as one that only Hadoop can reach."""

    def open_folder(path: Path) -> CheckpointFolder:
        folder = CheckpointFolder(spark, f"file:{path}")
        assert isinstance(folder.files, LocalFiles)
        if request.param == "hadoop":
            folder.files = HadoopFiles(spark, f"file:{path}")
        return folder

    return open_folder


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def plan(folder: Path, batch: int, *sources: str, watermark_ms: int = 0) -> None:
    metadata = json.dumps({"batchWatermarkMs": watermark_ms, "conf": {}})
    put(folder / "offsets" / str(batch), "\n".join(["v1", metadata, *sources]))


def test_an_empty_folder_says_nothing(at: Open, tmp_path: Path) -> None:
    assert at(tmp_path).read() == Checkpoint(None, None, None)
    assert at(tmp_path / "not" / "there").read() == Checkpoint(None, None, None)


def test_the_newest_numbers_count_and_other_files_do_not(at: Open, tmp_path: Path) -> None:
    put(tmp_path / "metadata", '{"id":"9f2d"}')
    for name in ("9", "10", ".10.crc", ".11.draft", "12.compact", ".12.uuid.tmp"):
        put(tmp_path / "offsets" / name, "")
    put(tmp_path / "commits" / "9", "")
    assert at(tmp_path).read() == Checkpoint("9f2d", 10, 9)


def test_a_plan_is_read_with_its_sources_in_order(at: Open, tmp_path: Path) -> None:
    odd = '{"path":"caf\N{LATIN SMALL LETTER E WITH ACUTE}\N{LINE SEPARATOR}"}'
    plan(tmp_path, 3, '{"a":{"0":7}}', odd, "-", watermark_ms=1500)
    assert at(tmp_path).planned(3) == Planned(1500, ('{"a":{"0":7}}', odd, "-"))


def test_a_plan_that_is_missing_or_of_another_version_is_refused(at: Open, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=f"{tmp_path}/offsets/3 is missing.*of its own"):
        at(tmp_path).planned(3)
    put(tmp_path / "offsets" / "3", "v2\n{}\n0:{}")
    with pytest.raises(LedgerError, match=f"{tmp_path}/offsets/3 is of version v2, known is v1"):
        at(tmp_path).planned(3)


def test_a_commit_is_written_with_the_batchs_own_watermark(at: Open, tmp_path: Path) -> None:
    plan(tmp_path, 4, "{}", watermark_ms=1500)
    put(tmp_path / "commits" / "3", 'v1\n{"nextBatchWatermarkMs":1000}')
    folder = at(tmp_path)
    folder.finish(4)
    assert folder.read().committed == 4
    written = (tmp_path / "commits" / "4").read_text()
    assert written == 'v1\n{"nextBatchWatermarkMs":1500}'


def test_a_commit_without_a_plan_is_not_written(at: Open, tmp_path: Path) -> None:
    folder = at(tmp_path)
    with pytest.raises(LedgerError, match="offsets/4 is missing"):
        folder.finish(4)
    assert folder.read().committed is None


def test_a_commit_names_the_state_of_the_visible_attempt(at: Open, tmp_path: Path) -> None:
    plan(tmp_path, 4, "{}", watermark_ms=7)
    put(tmp_path / "commits" / "3", 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"]]}}')
    folder = at(tmp_path)
    folder.finish(4, {"0": [["b"]]})
    written = (tmp_path / "commits" / "4").read_text()
    assert written == 'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["b"]]}}'
    assert folder.state_ids(3) == {"0": [["a"]]}
    folder.set_state_ids(4, {"0": [["c"]]})
    assert folder.state_ids(4) == {"0": [["c"]]}
    assert folder.state_ids(5) is None


def test_so_does_the_first_one(at: Open, tmp_path: Path) -> None:
    plan(tmp_path, 0, "{}")
    folder = at(tmp_path)
    folder.finish(0, {"0": [["b"]]})
    assert (tmp_path / "commits" / "0").read_text().splitlines()[0] == "v2"
    assert folder.state_ids(0) == {"0": [["b"]]}


def test_state_that_the_ledger_does_not_name_is_refused(at: Open, tmp_path: Path) -> None:
    plan(tmp_path, 4, "{}")
    ids = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [["a299"]]}}
    put(tmp_path / "commits" / "3", f"v2\n{json.dumps(ids)}")
    with pytest.raises(LedgerError, match=r"batch 4 .*which state belongs to it.*lostState=empty"):
        at(tmp_path).finish(4)
    assert not (tmp_path / "commits" / "4").exists()


def test_what_a_new_checkpoint_is_given_may_be_given_again(at: Open, tmp_path: Path) -> None:
    folder = at(tmp_path)
    for offset in (7, 8):
        folder.name_query("9f2d")
        folder.start_from(1, {"a": {"0": offset}})
        assert (tmp_path / "sources/1/0").read_text() == f'\0v1\n{{"a":{{"0":{offset}}}}}'
    assert folder.read() == Checkpoint("9f2d", None, None)


def test_one_reads_what_the_other_wrote_over(tmp_path: Path, spark: SparkSession) -> None:
    ways = [LocalFiles(tmp_path), HadoopFiles(spark, f"file:{tmp_path}")]
    for turn in range(2):
        for writer in ways:
            text = f"{turn} by {type(writer).__name__} \N{SNOWMAN}"
            writer.write("sources/0/0", text)
            assert [reader.read("sources/0/0") for reader in ways] == [text, text]


@pytest.mark.parametrize("name", ["plain", "a b", "a%20b", "a#b", "a?b", "a;b", "\N{SNOWMAN}"])
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_location_means_what_spark_takes_it_for(
    tmp_path: Path, spark: SparkSession, name: str, scheme: str
) -> None:
    location = f"{scheme}{tmp_path / name}"
    asked = spark._jvm.org.apache.hadoop.fs.Path(location)  # type: ignore[union-attr]
    system = asked.getFileSystem(spark._jsc.hadoopConfiguration())
    CheckpointFolder(spark, location).name_query("9f2d")
    assert (tmp_path / name / "metadata").exists()
    assert system.exists(spark._jvm.org.apache.hadoop.fs.Path(asked, "metadata"))  # type: ignore[union-attr]


def test_each_spelling_of_a_location_is_the_same_place(at: Open, tmp_path: Path) -> None:
    folder, link = tmp_path / "c", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    spelled = [str(folder), f"{folder}/", f"//{folder}", f"{tmp_path}/./link/../c"]
    roots = {at(Path("/", each)).files.root for each in spelled}
    assert len(roots) == 1
    assert at(tmp_path / "d").files.root not in roots


def test_a_relative_location_is_where_spark_was_started(spark: SparkSession) -> None:
    folder = CheckpointFolder(spark, "not-there")
    assert isinstance(folder.files, LocalFiles)
    started = spark._jvm.java.lang.System.getProperty("user.dir")  # type: ignore[union-attr]
    assert folder.files._folder == Path(started) / "not-there"


# -- with Spark itself -------------------------------------------------------------------------


class Query:
    """Files of text in, counted by value; each run takes what is new, one file a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._inbox = folder / "in"
        self._inbox.mkdir(parents=True)
        self.checkpoint = folder / "checkpoint"
        self.ran: list[int] = []
        self.counted: dict[str, int] = {}

    def add(self, name: str, text: str) -> None:
        (self._inbox / name).write_text(text)
        moment_s = 1_000_000 + len(list(self._inbox.iterdir()))
        os.utime(self._inbox / name, (moment_s, moment_s))

    def run(self) -> None:
        rows = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._inbox))
        writer = rows.groupBy("value").count().writeStream.foreachBatch(self._see)
        writer = writer.outputMode("update").option("checkpointLocation", str(self.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def _see(self, frame: DataFrame, batch: int) -> None:
        self.ran.append(batch)
        self.counted |= {row.value: row["count"] for row in frame.collect()}


@pytest.mark.parametrize("is_first", [False, True])
def test_spark_takes_a_commit_for_its_own(
    at: Open, tmp_path: Path, spark: SparkSession, is_first: bool
) -> None:
    query = Query(spark, tmp_path)
    query.add("1", "a\na\n")
    if not is_first:
        query.add("2", "a\nb\n")
    query.run()
    last = 0 if is_first else 1
    assert query.ran == list(range(last + 1))
    for lost in (f"commits/{last}", f"commits/.{last}.crc"):
        (query.checkpoint / lost).unlink()

    folder = at(query.checkpoint)
    id_before = folder.read().query
    assert folder.read() == Checkpoint(id_before, last, None if is_first else 0)
    folder.finish(last)
    query.add("3", "a\nc\n")
    query.ran.clear()
    query.run()

    assert query.ran == [last + 1], "the batch that was finished is not run again"
    assert query.counted["a"] == (3 if is_first else 4), "its state is gone on from"
    assert folder.read() == Checkpoint(id_before, last + 1, last + 1)


def test_without_it_spark_runs_the_batch_again(tmp_path: Path, spark: SparkSession) -> None:
    query = Query(spark, tmp_path)
    query.add("1", "a\n")
    query.run()
    for lost in ("commits/0", "commits/.0.crc"):
        (query.checkpoint / lost).unlink()
    query.run()
    assert query.ran == [0, 0]


def test_spark_takes_the_name_that_its_query_was_given(
    at: Open, tmp_path: Path, spark: SparkSession
) -> None:
    name = "5a1ddcf2-7a1c-4f5c-9c6e-0d2b6f0f9f2d"
    query = Query(spark, tmp_path)
    at(query.checkpoint).name_query(name)
    query.add("1", "a\n")
    query.run()
    assert at(query.checkpoint).read() == Checkpoint(name, 0, 0)
