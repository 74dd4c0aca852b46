"""An attempt that fails is aborted and the batch is run again under a new epoch; never mixed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from oracle import hanging, read, settle, values
from sparkonce.local import LocalKafka
from sparkonce.stream import desk
from stream_jobs import COUNT, EXPECTED, PROVIDERS, STORE, MakeJob, jobs_on, sums_told, write


class Once:
    """Does something at a point, the first time it is reached in any process."""

    def __init__(self, point: str, marker: Path, act: Callable[[], Any]) -> None:
        self._point, self._marker, self._act = point, marker, act

    def __call__(self, point: str) -> None:
        if point == self._point:
            try:
                self._marker.touch(exist_ok=False)
            except FileExistsError:
                return
            self._act()


def fail() -> None:
    raise RuntimeError("the disk of this executor is on fire")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["keyless", "keyed", "counting"])
@pytest.mark.parametrize("act", [fail, die])
def test_a_task_that_fails_in_mid_batch_costs_an_attempt_and_nothing_else(
    spark: SparkSession, new_job: MakeJob, tmp_path: Path, kind: str, act: Callable[[], Any]
) -> None:
    job = new_job(kind=kind)
    frame, mode = job.frame(spark)
    once = Once("produce:first", tmp_path / "failed", act)
    reports = write(job, frame, mode=mode, observe=once)
    assert [report.attempts for report in reports] == [2, 1, 1]
    epochs = [report.epoch for report in reports]
    assert epochs == sorted(set(epochs)) and epochs[0] > 0, "the second attempt has its own epoch"
    if kind == "counting":
        last = {record.key: record.value for record in read(job.servers, job.target)}
        assert set(last.values()) == {str(COUNT // 10).encode()}
        assert len(read(job.servers, job.target)) == 30
    else:
        assert sorted(values(job.servers, job.target)) == EXPECTED
    settle(job.servers, job.target)


@pytest.mark.parametrize("store", PROVIDERS)
def test_state_is_that_of_the_attempt_that_became_visible(
    spark: SparkSession, new_job: MakeJob, tmp_path: Path, store: str
) -> None:
    """The service answers 2 in the first attempt of the second batch, and 100 from then on (the
    next attempt may have kept what it said): the aborted one has written its state, and the next
    one must not build upon it. Each batch counts its values once, under one answer."""
    service, armed = tmp_path / "service", tmp_path / "armed"
    service.write_text("2")
    job = new_job(kind="gated", service=str(service))

    def change_and_fail() -> None:
        service.write_text("100")
        fail()

    once = Once("produce:last", tmp_path / "failed", change_and_fail)

    def in_second_batch(point: str) -> None:
        if point == "end:answered":
            armed.touch()
        elif armed.exists():
            once(point)

    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    own.conf.set(STORE, PROVIDERS[store])
    frame, mode = job.frame(own)
    reports = write(job, frame, mode=mode, observe=in_second_batch)
    assert [report.attempts for report in reports] == [1, 2, 1]
    for key, sums in sums_told(job).items():
        added = [after - before for before, after in zip([0, *sums], sums, strict=False)]
        assert added[0] % 2 == 0 and added[2] % 100 == 0, (key, sums)
        in_second = COUNT // 10 - added[0] // 2 - added[2] // 100
        assert added[1] in (2 * in_second, 100 * in_second), (key, sums)


def test_a_batch_that_fails_again_and_again_fails_with_the_first_cause(
    spark: SparkSession, new_job: MakeJob
) -> None:
    job = new_job()

    def always(point: str) -> None:
        if point == "produce:last":
            fail()

    with pytest.raises(Exception, match=r"failed 2 times \(batchAttempts=2\)") as failed:
        write(job, job.frame(spark)[0], observe=always, batchAttempts=2)
    assert "the disk of this executor is on fire" in str(failed.value)
    assert values(job.servers, job.target) == []
    settle(job.servers, job.target)
    job.run(spark)
    assert sorted(values(job.servers, job.target)) == EXPECTED


def test_a_batch_that_outlasts_its_transaction_is_run_again_and_told_what_to_turn(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver waits behind the write until the coordinator has aborted, then goes on."""
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with LocalKafka(properties=often) as kafka, jobs_on(kafka, tmp_path) as new_job:
        job = new_job()
        servers, target, waited = job.servers, job.target, tmp_path / "waited"

        def outlast(point: str) -> None:
            if point == "offsets" and not waited.exists():
                waited.touch()
                assert hanging(servers, target) != []
                settle(servers, target)

        options = {"kafka.transaction.timeout.ms": 1500}
        reports = write(job, job.frame(spark)[0], observe=outlast, **options)
        assert [report.attempts for report in reports] == [2, 1, 1]
        assert "open longer than transaction.timeout.ms=1500" in caplog.text
        assert "raise transaction.timeout.ms" in caplog.text
        assert sorted(values(servers, target)) == EXPECTED
        settle(servers, target)


def test_a_task_that_hangs_before_its_turn_is_waited_for_as_long_as_a_transaction(
    spark: SparkSession, new_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has written by then, so that the transaction is open."""
    monkeypatch.setattr(desk, "OUTLASTED_S", 0.0)
    job, hung, written = new_job(count=40), tmp_path / "hung", tmp_path / "written"

    def hang_once(value):  # type: ignore[no-untyped-def]  # hints would choose the kind of UDF
        if value == "000007" and not hung.exists():
            while not written.exists():
                time.sleep(0.01)
            hung.touch()
            time.sleep(600)
        return value

    def tell(point: str) -> None:
        if point == "produce:first":
            written.touch()

    text = F.col("value").cast("string")
    rows = job.read(spark).select(F.udf(hang_once, "string")(text).alias("value"))
    (report,) = write(job, rows, observe=tell, **{"kafka.transaction.timeout.ms": 3000})
    assert (report.attempts, report.outcome, report.records) == (2, "committed", 40)
    assert hung.exists()


def test_rows_that_do_not_lie_as_the_plan_said_are_written_in_turns(
    spark: SparkSession, new_job: MakeJob
) -> None:
    """Hash-partitioned by `partition`, but half of the rows have none and go by their key."""
    job = new_job()
    rows = job.read(spark).select(
        F.expr("substr(cast(value as string), -1)").alias("key"),
        "value",
        F.expr(
            "case when cast(cast(value as string) as int) div 10 % 2 = 0 then partition end"
        ).alias("partition"),
    )
    reports = write(job, rows.repartition(3, "partition"))
    assert [report.attempts for report in reports] == [2, 1, 1]
    assert sorted(values(job.servers, job.target)) == EXPECTED
