"""A driver that is fenced between two attempts: it removes nothing of its successor's state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deliver.tables import Table
from deliver.test_streams import Job
from sparkonce.errors import SparkonceError
from sparkonce.local import LocalKafka
from stream_jobs import PROVIDERS, STORE


@contextmanager
def between_two_attempts(act: Callable[[], None]) -> Iterator[None]:
    """The driver says in its log that it has aborted the first."""

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "the batch is run again" in record.getMessage():
                act()

    log, heard = logging.getLogger("sparkonce.stream"), Heard()
    log.addHandler(heard)
    try:
        yield
    finally:
        log.removeHandler(heard)


def fail(point: str) -> None:
    if point == "offsets":
        raise SparkonceError("the first attempt ends here")


def stop(point: str) -> None:
    if point == "fence":
        raise SparkonceError("it has taken over")


def test_a_driver_that_is_fenced_between_two_attempts_removes_no_state(
    spark: SparkSession, kafka: LocalKafka, topic: str, table: Table, tmp_path: Path
) -> None:
    own = spark.newSession()
    own.conf.set(STORE, PROVIDERS["hdfs"])
    own.conf.set("spark.sql.shuffle.partitions", "1")
    job = Job(own, kafka, topic, table)
    job.fill(0, 30)
    checkpoint = tmp_path / "c"
    successors = checkpoint / "state" / "0" / "0" / "1.snapshot"

    def take_over() -> None:
        with pytest.raises(SparkonceError, match="it has taken over"):
            job.run(tmp_path / "another", observe=stop)
        successors.write_text("of the successor")

    frame = job.frame().dropDuplicates(["value"])
    with between_two_attempts(take_over), pytest.raises(Exception, match="FencedError"):
        job.run(checkpoint, frame=frame, observe=fail)
    assert successors.exists()
