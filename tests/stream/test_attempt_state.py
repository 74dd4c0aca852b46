"""State that is read is that of the attempt whose output is visible, whoever else wrote some.

Others who write into the same checkpoint: Spark's maintenance, from the memory of an attempt that
was given up; a driver that was held up and goes on when its successor has done the work. The
outside service answers differently each time, so that the states can be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs import Job, apart
from oracle import hanging
from parts import wait_until
from sparkonce.errors import ConfigError, SparkonceError
from sparkonce.stream.ledger import LedgerError
from stream_jobs import PROVIDERS, STORE, MakeJob, fill, sums_told

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STORES = {
    "hdfs": {STORE: PROVIDERS["hdfs"]},
    "rocksdb": {STORE: PROVIDERS["rocksdb"]},
    "rocksdb with changelog": {STORE: PROVIDERS["rocksdb"], CHANGELOG: "true"},
    "rocksdb with changelog, format 1": {
        STORE: PROVIDERS["rocksdb"],
        CHANGELOG: "true",
        FORMAT: "1",
    },
}
OFTEN = {
    "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "0",
    # Else all later queries of this process have to write snapshots as often.
    "spark.sql.streaming.stateStore.forceSnapshotUploadOnLag": "false",
}
BATCHES, PER_BATCH = 5, 40
PER_KEY = PER_BATCH // 10

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def service(tmp_path: Path) -> Path:
    file = tmp_path / "service"
    file.write_text("1")
    return file


@pytest.fixture
def maintained(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark's maintenance has the interval of the first query that it is started for."""
    store = spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore  # type: ignore[union-attr]
    store.stopMaintenanceTask()
    yield spark
    store.stopMaintenanceTask()


def a_job(new_job: MakeJob, service: Path, store: str, **conf: str) -> Job:
    return new_job(
        kind="weighed",
        count=BATCHES * PER_BATCH,
        per_batch=PER_BATCH,
        service=str(service),
        conf=STORES[store] | conf,
    )


def go_on(job: Job, spark: SparkSession) -> None:
    """A start that finds its state on disk, with more to do."""
    fill(job.servers, job.source, BATCHES * PER_BATCH, PER_BATCH)
    job.run(spark)


def increments(job: Job) -> list[int]:
    """What the service's answer was in each visible batch, for all keys the same."""
    assert hanging(job.servers, job.target) == []
    found = {
        tuple((b - a) / PER_KEY for a, b in zip([0, *sums], sums, strict=False))
        for sums in sums_told(job).values()
    }
    assert len(found) == 1, found
    return [int(each) for each in found.pop()]


def is_in_a_snapshot(state: Path) -> bool:
    """Whether all of the last version is."""
    return all(
        [*folder.glob(f"{BATCHES}.snapshot"), *folder.glob(f"{BATCHES}[._]*zip")]
        for folder in state.glob("*/[0-9]*")
    )


@pytest.mark.parametrize("store", STORES)
def test_a_snapshot_of_an_attempt_that_was_given_up_is_not_gone_on_from(
    maintained: SparkSession, new_job: MakeJob, service: Path, store: str
) -> None:
    job = a_job(new_job, service, store, **OFTEN)
    state = Path(job.checkpoint, "state")

    class GiveUp:
        """The last batch, once its state is in a snapshot."""

        seen = 0

        def __call__(self, point: str) -> None:
            self.seen += point == "offsets"
            if point == "offsets" and self.seen == BATCHES:
                wait_until(lambda: is_in_a_snapshot(state), "maintenance has written a snapshot")
                service.write_text("100")
                raise SparkonceError("the first attempt ends here")

    job.run(maintained, GiveUp())
    go_on(job, maintained)
    assert increments(job) == [1] * (BATCHES - 1) + [100, 100]


@pytest.mark.parametrize("store", STORES)
def test_so_is_one_of_a_driver_that_was_killed_before_the_decision(
    maintained: SparkSession, new_job: MakeJob, service: Path, store: str
) -> None:
    job = a_job(new_job, service, store, **OFTEN)
    held = replace(job, hold_at="offsets", hold_time=BATCHES)
    state = Path(job.checkpoint, "state")
    with apart([held]) as process:
        wait_until(lambda: is_in_a_snapshot(state), "maintenance has written a snapshot")
        process.kill()
    service.write_text("100")
    job.run(maintained)
    go_on(job, maintained)
    assert increments(job) == [1] * (BATCHES - 1) + [100, 100]


@pytest.fixture(params=STORES)
def overtaken(
    request: pytest.FixtureRequest, spark: SparkSession, new_job: MakeJob, service: Path
) -> Job:
    """A driver planned a batch, its successor did all the work and ended; then the first one's
    tasks ran, and were refused by the brokers when their state was written."""
    job = a_job(new_job, service, request.param)
    held = replace(job, hold_at="open", hold_time=2)
    with apart([held]) as first:
        job.run(spark)
        service.write_text("7")
        held.release()
        assert first.wait(60) != 0
    assert "FencedError" in held.log.read_text()
    service.write_text("100")
    return job


def test_a_fenced_driver_does_not_change_its_successors_state(
    overtaken: Job, spark: SparkSession
) -> None:
    if overtaken.conf[STORE] == PROVIDERS["rocksdb"] and FORMAT not in overtaken.conf:
        go_on(overtaken, spark)
        assert increments(overtaken) == [1] * BATCHES + [100]
        return
    # Files named by version alone can't be kept apart; that they were changed is noticed.
    with pytest.raises(LedgerError, match="is not what the visible attempt wrote"):
        go_on(overtaken, spark)
    assert increments(overtaken) == [1] * BATCHES


@pytest.mark.parametrize("store", ["hdfs", "rocksdb with changelog, format 1"])
def test_a_file_of_state_that_is_missing_is_refused(
    spark: SparkSession, new_job: MakeJob, service: Path, store: str
) -> None:
    job = a_job(new_job, service, store)
    job.run(spark)
    (lost,) = [*Path(job.checkpoint, "state", "0", "1").glob("2.[dc][eh]*")]
    lost.unlink()
    with pytest.raises(LedgerError, match=rf"{lost} is missing"):
        go_on(job, spark)


def test_a_commit_that_names_other_state_is_corrected(
    spark: SparkSession, new_job: MakeJob, service: Path
) -> None:
    job = a_job(new_job, service, "rocksdb")
    job.run(spark)
    commits = Path(job.checkpoint, "commits")
    last, former = (commits / str(BATCHES - 1), commits / str(BATCHES - 2))
    right = last.read_text()
    last.write_text(former.read_text())
    last.with_name(f".{last.name}.crc").unlink()
    go_on(job, spark)
    assert last.read_text() == right
    assert increments(job) == [1] * (BATCHES + 1)


def test_a_note_that_was_changed_is_refused(
    spark: SparkSession, new_job: MakeJob, service: Path
) -> None:
    job = a_job(new_job, service, "rocksdb")
    job.run(spark)
    notes = Path(job.checkpoint, "sparkonce", "state")
    (last,) = notes.glob(f"{BATCHES - 1}-*")
    last.write_text(last.read_text().replace("0", "1", 1))
    with pytest.raises(LedgerError, match=rf"{last.name} was changed.*Restore the checkpoint"):
        go_on(job, spark)
    last.unlink()
    with pytest.raises(LedgerError, match=rf"{last.name} is missing.*lostState=empty"):
        job.run(spark)


def test_state_that_is_kept_in_an_unknown_way_is_refused(
    spark: SparkSession, new_job: MakeJob, service: Path
) -> None:
    own = "org.example.OwnStateStoreProvider"
    job = new_job(kind="weighed", count=10, service=str(service), conf={STORE: own})
    with pytest.raises(ConfigError, match=rf"{own} keeps state in a way .*RocksDB"):
        job.run(spark)
