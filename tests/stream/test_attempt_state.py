"""State that is read is that of the attempt whose output is visible, whoever else wrote some.

Others who write into the same checkpoint: Spark's maintenance, from the memory of an attempt that
was given up; a driver that was held up and goes on when its successor has done the work. The
outside service answers differently each time, so that the states can be told apart.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from jobs import Job, apart
from oracle import settle
from parts import wait_until
from sparkonce import TransactionalProducer
from sparkonce.errors import ConfigError, FencedError, SparkonceError
from sparkonce.stream.checkpoint import CheckpointFolder
from sparkonce.stream.ledger import LedgerError
from sparkonce.stream.state import StateNotes
from sparkonce.stream.state_by_id import StateById
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
    # Spark stops maintenance under a lock that maintenance itself may be waiting for: so long.
    "spark.sql.streaming.stateStore.maintenanceShutdownTimeout": "1s",
}
BY_VERSION = ["hdfs", "rocksdb with changelog, format 1"]
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


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The driver with its JVM."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    both = [pid, *map(int, found)]
    for each in both:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in both:
            os.kill(each, signal.SIGCONT)


def increments(job: Job) -> list[int]:
    """What the service's answer was in each visible batch, for all keys the same."""
    settle(job.servers, job.target)
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


def files_of_state(job: Job) -> dict[Path, bytes]:
    found = Path(job.checkpoint, "state").glob("[0-9]*/[0-9]*/*")
    return {each: each.read_bytes() for each in found if each.is_file()}


def take_over(job: Job) -> None:
    """As another driver would: whoever came before is fenced."""
    named = {"bootstrap.servers": job.servers, "transactional.id": job.name}
    with TransactionalProducer(named) as another:
        another.init_transactions()


def test_a_snapshot_of_a_fenced_driver_is_not_gone_on_from(
    spark: SparkSession, new_job: MakeJob, service: Path
) -> None:
    """It is stopped behind its tasks; its successor computes the batch again, decides it and ends;
    then its maintenance writes what it remembers."""
    job = a_job(new_job, service, "hdfs")
    held = replace(job, hold_at="offsets", hold_time=BATCHES, conf=job.conf | OFTEN)
    state = Path(job.checkpoint, "state")
    with apart([held]) as first:
        wait_until(lambda: is_in_a_snapshot(state), "maintenance has written a snapshot")
        with stopped(first.pid):
            service.write_text("7")
            job.run(spark)
            assert not is_in_a_snapshot(state)
        wait_until(lambda: is_in_a_snapshot(state), "the fenced driver has written a snapshot")
        held.release()
        assert first.wait(60) != 0
    assert "FencedError" in held.log.read_text()
    assert is_in_a_snapshot(state)
    service.write_text("100")
    go_on(job, spark)
    assert increments(job) == [1] * (BATCHES - 1) + [7, 100]


@pytest.mark.parametrize("store", BY_VERSION)
def test_a_driver_that_was_fenced_while_it_rested_computes_no_state(
    spark: SparkSession, new_job: MakeJob, service: Path, store: str
) -> None:
    """Its successor may have looked for what is planned before it plans, and so would not know that
    the version is in doubt."""
    job = a_job(new_job, service, store)
    own = spark.newSession()
    for key, value in ({"spark.sql.shuffle.partitions": "2"} | job.conf).items():
        own.conf.set(key, value)
    frame, mode = job.frame(own)
    writer = job.writer(frame, mode).option("topic", job.target)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        before = files_of_state(job)
        take_over(job)
        fill(job.servers, job.source, BATCHES * PER_BATCH, PER_BATCH)
        with pytest.raises(StreamingQueryException, match="FencedError"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert files_of_state(job) == before
    assert increments(job) == [1] * BATCHES


def test_a_driver_that_was_fenced_before_its_run_removes_no_state(
    spark: SparkSession, new_job: MakeJob, service: Path
) -> None:
    """Its successor has decided a batch that Spark has not yet committed: to one that is fenced,
    that looks like a batch which was planned and given up."""
    job = a_job(new_job, service, "hdfs")
    job.run(spark)
    log = Path(job.checkpoint, "offsets")
    (log / str(BATCHES)).write_text((log / str(BATCHES - 1)).read_text())
    successors = Path(job.checkpoint, "state", "0", "0", f"{BATCHES + 1}.delta")
    successors.write_text("of the successor")

    def fence(point: str) -> None:
        if point == "fence":
            take_over(job)

    with pytest.raises(FencedError):
        job.run(spark, fence)
    assert successors.exists()


@pytest.mark.parametrize("store", BY_VERSION)
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


@pytest.mark.parametrize(
    ("store", "guarantee", "is_warned"),
    [
        ("hdfs", "exactly_once", True),
        ("rocksdb with changelog, format 1", "exactly_once", True),
        ("rocksdb", "exactly_once", False),
        ("hdfs", "at_least_once", False),  # it promises nothing of state
    ],
)
def test_a_start_with_state_named_by_version_says_what_may_go_unnoticed(
    spark: SparkSession,
    new_job: MakeJob,
    caplog: pytest.LogCaptureFixture,
    store: str,
    guarantee: str,
    is_warned: bool,
) -> None:
    job = new_job(kind="counting", count=10, conf=STORES[store], guarantee=guarantee)
    with caplog.at_level(logging.WARNING):
        job.run(spark)
    told = [each for each in caplog.messages if "state in files that are named by version" in each]
    assert len(told) == is_warned
    for message in told:
        for words in (job.checkpoint, f"{STORE}={PROVIDERS['rocksdb']}", f"{FORMAT}=2"):
            assert words in message


def test_a_plan_in_which_no_state_is_found_is_not_decided(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A query of which it was thought that it keeps state."""
    folder = CheckpointFolder(spark, str(tmp_path / "c"))
    state = StateById(spark, folder, StateNotes(folder, kept=2))

    def seal(frame: DataFrame, batch: int) -> None:
        state.seal(batch, None)

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rows.writeStream.foreachBatch(seal).trigger(once=True)
    query = writer.option("checkpointLocation", folder.location).start()
    with pytest.raises(StreamingQueryException, match=r"LedgerError.*no operator that does"):
        query.awaitTermination()
    assert folder.files.names("sparkonce/state") == []
