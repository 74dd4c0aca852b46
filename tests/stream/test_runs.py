"""Behind a batch that was computed twice a query with state goes on in a new run, unnoticed by whom
has its handle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparkonce
from jobs import Job
from oracle import values
from parts import wait_until
from sparkonce.errors import SparkonceError, Unreachable
from sparkonce.stream import batch, writer
from sparkonce.stream.report import BatchReport
from sparkonce.stream.runs import RenewedQuery
from stream_jobs import COUNT, PROVIDERS, STORE, MakeJob, Reports, fill, sums_told, write

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def as_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one process has all executors, none remembers what another has not seen."""
    for each in (batch, writer):
        monkeypatch.setattr(each, "is_one_process", lambda context: False)


@pytest.fixture
def by_version(spark: SparkSession) -> SparkSession:
    """A session whose queries name their state by version alone."""
    own = spark.newSession()
    own.conf.set(STORE, PROVIDERS["hdfs"])
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


class FailsOnce:
    """The first attempt of the first batch is given up, as soon as a file says that it may be."""

    def __init__(self, may: Path | None = None) -> None:
        self.is_due = True
        self.may = may

    def __call__(self, point: str) -> None:
        if point == "offsets" and self.is_due:
            if self.may:
                wait_until(self.may.exists, "it may go on")
            self.is_due = False
            raise SparkonceError("the first attempt ends here")


def live(job: Job, spark: SparkSession, observe: Callable[[str], None]) -> StreamingQuery:
    """As the job, without an end."""
    frame, mode = job.frame(spark)
    return job.writer(frame, mode).option("topic", job.target).observe(observe).start()


def test_a_batch_computed_twice_is_the_last_of_its_run(
    by_version: SparkSession, new_job: MakeJob
) -> None:
    job = new_job(kind="counting")
    query = job.start(by_version, FailsOnce())
    first = query.runId
    query.awaitTermination()
    assert query.runId != first
    assert (query.isActive, query.exception()) == (False, None)
    assert query.awaitTermination(1) is True
    assert {sums[-1] for sums in sums_told(job).values()} == {COUNT // 10}
    assert all(sums == sorted(set(sums)) for sums in sums_told(job).values())


def test_one_that_was_not_is_followed_in_the_same_run(
    by_version: SparkSession, new_job: MakeJob
) -> None:
    query = new_job(kind="counting").start(by_version)
    first = query.runId
    query.awaitTermination()
    assert query.runId == first
    assert len(query.recentProgress) >= 3


def test_who_waits_for_all_that_is_there_waits_for_the_new_run(
    by_version: SparkSession, new_job: MakeJob
) -> None:
    job = new_job(kind="counting", count=400)
    query = live(job, by_version, FailsOnce())
    first = query.runId
    query.processAllAvailable()
    assert query.awaitTermination(1) is False
    fill(job.servers, job.source, 400, 400)
    query.processAllAvailable()
    assert query.runId != first
    assert query.isActive
    assert all(sums == [40, 80] for sums in sums_told(job).values())
    query.stop()
    assert (query.isActive, query.exception()) == (False, None)


def test_a_query_that_is_stopped_gets_no_new_run(
    by_version: SparkSession, new_job: MakeJob
) -> None:
    job = new_job(kind="counting", count=400)
    query = live(job, by_version, FailsOnce())
    query.processAllAvailable()
    query.stop()
    query.awaitTermination()
    assert not query.isActive
    assert query.id not in {each.id for each in by_version.streams.active}


def test_a_failure_of_its_own_ends_it(by_version: SparkSession, new_job: MakeJob) -> None:
    def fail(point: str) -> None:
        if point == "offsets":
            raise SparkonceError("each attempt ends here")

    query = new_job(kind="counting").start(by_version, fail)
    with pytest.raises(StreamingQueryException, match="each attempt ends here"):
        query.awaitTermination()
    assert not query.isActive
    assert "each attempt ends here" in str(query.exception())


def test_an_attempt_that_fails_before_it_computes_is_followed_by_another(
    spark: SparkSession, new_job: MakeJob
) -> None:
    """Spark knows of no job then, as there was none."""
    job = new_job(count=40)
    opened = []

    def unreachable(point: str) -> None:
        if point == "open":
            opened.append(point)
            if len(opened) == 1:
                raise Unreachable("no broker answers yet")

    (report,) = write(job, job.frame(spark)[0], observe=unreachable)
    assert (report.attempts, report.outcome, report.records) == (2, "committed", 40)


def test_where_each_attempt_fails_so_the_query_tells_why(
    spark: SparkSession, new_job: MakeJob
) -> None:
    def unreachable(point: str) -> None:
        if point == "open":
            raise Unreachable("no broker answers")

    job = new_job(count=40)
    with pytest.raises(StreamingQueryException, match=r"failed 3 times.*: no broker answers"):
        write(job, job.frame(spark)[0], observe=unreachable)


def test_a_new_run_that_cannot_start_tells_why(
    by_version: SparkSession, new_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    may = tmp_path / "may"
    query = new_job(kind="counting").start(by_version, FailsOnce(may))

    def refuse() -> StreamingQuery:
        raise SparkonceError("not today")

    monkeypatch.setattr(query, "_start", refuse)
    may.touch()
    with pytest.raises(SparkonceError, match="not today"):
        query.awaitTermination()
    assert not query.isActive


def test_who_waits_is_told_where_nobody_supervises_the_query_any_more(
    by_version: SparkSession, new_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    may = tmp_path / "may"
    query = new_job(kind="counting").start(by_version, FailsOnce(may))

    def fail() -> bool:
        raise ConnectionError("Spark's JVM does not answer")

    monkeypatch.setattr(query, "_ended_as_spent", fail)
    may.touch()
    with pytest.raises(ConnectionError, match="JVM does not answer"):
        query.awaitTermination()
    assert not query.isActive
    query.stop()


def test_a_query_that_is_stopped_while_its_run_is_renewed_ends_without_an_error(
    by_version: SparkSession, new_job: MakeJob
) -> None:
    job = new_job(kind="counting", count=800)
    query = live(job, by_version, FailsOnce())
    assert isinstance(query, RenewedQuery)
    with query._changing:  # a new run can't begin
        run = query._jsq
        wait_until(lambda: not run.isActive(), "the first run is spent")
        query._is_stopped = True
    query.stop()
    query.awaitTermination()
    query.processAllAvailable()
    assert (query.isActive, query.exception(), query._jsq is run) == (False, None, True)


def test_state_named_by_ids_needs_no_new_run(spark: SparkSession, new_job: MakeJob) -> None:
    job = new_job(kind="counting")
    own = spark.newSession()
    own.conf.set(STORE, PROVIDERS["rocksdb"])
    query = job.start(own, FailsOnce())
    first = query.runId
    query.awaitTermination()
    assert query.runId == first
    assert {sums[-1] for sums in sums_told(job).values()} == {COUNT // 10}


class Tags:
    """Remembers how Spark tells the tasks of each batch."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.all: list[set[str]] = []

    def on_batch(self, report: BatchReport) -> None:
        self.all.append(set(self.spark.sparkContext.getJobTags()))


def test_tasks_are_known_to_the_next_query_however_its_checkpoint_is_spelled(
    spark: SparkSession, new_job: MakeJob
) -> None:
    """It waits until none of the last query's is left."""
    job, tags = new_job(count=40), Tags(spark)
    link = Path(f"{job.checkpoint}-link")
    link.symlink_to(job.checkpoint)
    spelled = [job.checkpoint, f"file:{job.checkpoint}/", os.path.relpath(job.checkpoint), link]
    for number, location in enumerate(map(str, spelled)):
        fill(job.servers, job.source, 40 * (number + 1), 40)
        rows, mode = job.frame(spark)
        writer = replace(job, checkpoint=location).writer(rows, mode).option("topic", job.target)
        writer.trigger(availableNow=True).listener(tags).start().awaitTermination()
    assert len(tags.all) >= len(spelled)
    assert len(set.intersection(*tags.all)) == 1


class Once:
    """Fails at the first record of a task, once in all processes."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, point: str) -> None:
        if point == "produce:first" and not self.marker.exists():
            self.marker.touch()
            raise RuntimeError("the disk of this executor is on fire")


def twice_shuffled(rows: DataFrame) -> DataFrame:
    # Of two that have nothing between them Spark makes one.
    once = rows.repartition(2, "value").selectExpr("concat(cast(value as string), '!') value")
    return once.repartition(3)


def test_what_was_shuffled_twice_is_not_kept_behind_tasks_that_failed(
    spark: SparkSession, new_job: MakeJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = new_job(count=40)
    (failed, report) = write(
        job, twice_shuffled(job.frame(spark)[0]), observe=Once(tmp_path / "failed")
    )
    assert (failed.outcome, report.outcome, report.records) == ("failed", "committed", 40)
    assert "on fire" in failed.error
    assert caplog.text.count("while rows were shuffled twice") == 1


def test_what_was_shuffled_once_is(
    spark: SparkSession, new_job: MakeJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = new_job(count=40)
    rows = job.frame(spark)[0].repartition(3)
    (report,) = write(job, rows, observe=Once(tmp_path / "failed"))
    assert (report.attempts, report.outcome, report.records) == (2, "committed", 40)
    assert "in a new run" not in caplog.text


def test_a_batch_job_is_computed_anew_where_it_was_shuffled_twice(
    spark: SparkSession, new_job: MakeJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, reports = new_job(count=0), Reports()
    rows = spark.range(40).selectExpr("cast(id as string) value")
    (
        sparkonce.write(twice_shuffled(rows))
        .options(**{"kafka.bootstrap.servers": job.servers, "kafka.transactional.id": job.name})
        .options(topic=job.target, runId="1")
        .observe(Once(tmp_path / "failed"))
        .listener(reports)
        .save()
    )
    assert [report.outcome for report in reports.all] == ["failed", "committed"]
    assert len(values(job.servers, job.target)) == 40
    assert caplog.text.count("while rows were shuffled twice") == 1


RETRIED = """
import sys, time
from pathlib import Path
import sparkonce
from sparkonce.errors import SparkonceError
from sparkonce.stream import runs
from sparkonce.stream.runs import Run, RunSpent, StillRunning

conf = {"spark.python.task.killTimeout": "100s", "spark.ui.retainedJobs": "3"}
spark = sparkonce.session("retried", "local[2,3]", conf)
def of_a_query():
    return Run(spark.sparkContext, "p", "here", is_one_process=False, remembers_versions=True)

run = of_a_query()
mark, given_up, ended = (Path(sys.argv[1], name) for name in ("mark", "given up", "ended"))

def stumble(index, rows):
    if index == 1 and not mark.exists():
        mark.touch()
        raise RuntimeError("once")
    return rows

def batch(function):
    with run.batch():
        spark.sparkContext.parallelize(range(4), 2).mapPartitionsWithIndex(function).collect()
    run.judge(1)
    return run.is_spent

def linger(index, rows):
    if index == 1:
        raise RuntimeError("each time")
    while not given_up.exists():
        time.sleep(0.01)
    time.sleep(0.5)  # so that it is still there
    ended.touch()
    return rows

print(batch(lambda index, rows: rows), batch(stumble))
run.renew()
with run.batch():
    try:
        spark.sparkContext.parallelize(range(4), 2).mapPartitionsWithIndex(linger).collect()
    except Exception:
        patience_s, runs._SETTLED_WITHIN_S = runs._SETTLED_WITHIN_S, 0
        try:
            run.settle()
        except StillRunning as error:
            print("1 tasks" in str(error))
        runs._SETTLED_WITHIN_S = patience_s
        given_up.touch()
        run.settle()
        print(ended.exists())
given_up.unlink()
ended.unlink()
try:
    with run.batch():
        spark.sparkContext.parallelize(range(4), 2).mapPartitionsWithIndex(linger).collect()
except Exception:
    pass  # the last attempt: its query ends here, and another is started
given_up.touch()
of_a_query().settle_former()
print(ended.exists())

def is_told(job):
    return spark.sparkContext.statusTracker().getJobInfo(job) is not None

def is_spent(step):
    # by a step of an attempt whose job was forgotten meanwhile
    run = of_a_query()
    job = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
    with run.batch():
        run.check()  # no job at all is none that is missing
        spark.sparkContext.parallelize(range(4), 2).collect()
        for tag in spark.sparkContext.getJobTags():
            spark.sparkContext.removeJobTag(tag)
        deadline_s = time.monotonic() + 60
        while is_told(job) and time.monotonic() < deadline_s:
            spark.sparkContext.parallelize(range(4), 2).collect()
        try:
            step(run)
        except RunSpent as spent:
            assert "retainedJobs" in str(spent.__cause__)
        return run.is_spent

print(is_spent(lambda run: run.check()), is_spent(lambda run: run.settle()))
print(is_spent(lambda run: run.judge(1)), is_spent(lambda run: run.settle(has_computed=False)))
spark.stop()
"""


def test_tasks_that_ran_again_are_noticed_and_those_that_go_on_are_waited_for(
    tmp_path: Path,
) -> None:
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", RETRIED, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.split() == [*["False", "True"], *3 * ["True"], *3 * ["True"], "False"]
