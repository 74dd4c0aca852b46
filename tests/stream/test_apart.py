"""Tasks with partitions of their own, and what they have for partitions that are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sparkonce.stream.writer
from oracle import read, settle, values
from parts import a_topic
from sparkonce.local import LocalKafka
from sparkonce.stream.sources import Reading, reading_of
from stream_jobs import EXPECTED, MakeJob, write

BATCHES = 3


def number(value: str = "value") -> Column:
    return F.col(value).cast("string").cast("int")


@pytest.fixture
def letters(kafka: LocalKafka) -> Iterator[str]:
    with a_topic(kafka, partitions=1) as name:
        yield name


def unequal(rows: DataFrame) -> Column:
    """True for a number of rows that is another one in each source partition."""
    return (number() % 10 <= F.col("partition")) & (number() % 20 < 10)


def test_dead_letters_of_tasks_that_keep_their_partitions(
    spark: SparkSession, new_job: MakeJob, letters: str
) -> None:
    """Each task has its own partitions of the target, and letters for the only other one."""
    job = new_job()
    rows = job.read(spark)
    marked = rows.select(
        "key",
        "value",
        "partition",
        F.when(unequal(rows), "bad").alias("dead_letter"),
    )
    reports = write(job, marked, deadLetterTopic=letters)
    assert [report.attempts for report in reports] == [1] * BATCHES
    told = read(job.servers, letters)
    counts = [report.dead_letters for report in reports]
    assert min(counts) > 0 and sum(counts) == len(told)
    fit = values(job.servers, job.target)
    assert sorted([*fit, *(letter.value for letter in told)]) == EXPECTED
    assert {letter.headers[0][1] for letter in told if letter.headers} == {b"bad"}
    settle(job.servers, letters)


def test_dead_letters_into_the_target_itself(spark: SparkSession, new_job: MakeJob) -> None:
    """Then no partition of it is any task's own."""
    job = new_job()
    rows = job.read(spark)
    marked = rows.select("value", F.when(unequal(rows), "bad").alias("dead_letter"))
    reports = write(job, marked, deadLetterTopic=job.target)
    assert [report.attempts for report in reports] == [1] * BATCHES
    assert sorted(values(job.servers, job.target)) == EXPECTED


@pytest.mark.parametrize("attempts_max", [3, 1])
def test_rows_without_a_partition_among_rows_that_lie_by_it(
    spark: SparkSession, new_job: MakeJob, attempts_max: int
) -> None:
    """They go by their key, to partitions that other tasks have: the first attempt finds them
    before it sends them. It is not counted: each start would end with it otherwise."""
    job = new_job()
    rows = job.read(spark).select(
        F.expr("substr(cast(value as string), -1)").alias("key"),
        "value",
        F.when(number() % 7 > 0, F.col("partition")).alias("partition"),
    )
    reports = write(job, rows.repartition(3, "partition"), batchAttempts=attempts_max)
    assert [report.attempts for report in reports] == [2, 1, 1]
    assert sorted(values(job.servers, job.target)) == EXPECTED
    settle(job.servers, job.target)


def test_dead_letters_without_a_partition_are_no_reason_for_turns(
    spark: SparkSession, new_job: MakeJob, letters: str
) -> None:
    job = new_job()
    rows = job.read(spark)
    is_bad = number() % 7 == 0
    marked = rows.select(
        "key",
        "value",
        F.when(~is_bad, F.col("partition")).alias("partition"),
        F.when(is_bad, "bad").alias("dead_letter"),
    )
    reports = write(job, marked.repartition(3, "partition"), deadLetterTopic=letters)
    assert [report.attempts for report in reports] == [1] * BATCHES
    told = values(job.servers, letters)
    assert len(told) == sum(int(value) % 7 == 0 for value in EXPECTED)
    assert sorted([*told, *values(job.servers, job.target)]) == EXPECTED


def test_a_plan_that_was_misread_costs_one_attempt(
    spark: SparkSession, new_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks write other numbers of records to one partition: the broker finds the second out of
    order, and that is the last time that they do not take turns."""

    def misread(frame: DataFrame) -> Reading:
        return replace(reading_of(frame), keeps_partition=True)

    monkeypatch.setattr(sparkonce.stream.writer, "reading_of", misread)
    job = new_job()
    rows = job.read(spark)
    to_two = F.when(unequal(rows), 0).otherwise(F.lit(1)).alias("partition")
    reports = write(job, rows.select("key", "value", to_two))
    assert [report.attempts for report in reports] == [2, 1, 1]
    assert sorted(values(job.servers, job.target)) == EXPECTED
