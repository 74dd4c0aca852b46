"""Many tasks write to few partitions in turns: nothing is lost, repeated or out of order."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkonce
from oracle import hanging, read
from parts import a_topic
from sparkonce.local import LocalKafka
from sparkonce.stream.turns import Queues
from sparkonce.verify import CutMidFrame, FaultProxy, LoseRequest, LoseResponse
from stream_jobs import Reports

ROWS, TASKS = 60_000, 12
PLACE = ("t", 0)


@pytest.fixture
def topic(kafka: LocalKafka) -> Iterator[str]:
    with a_topic(kafka, partitions=3) as name:
        yield name


def keyed(spark: SparkSession) -> DataFrame:
    """Each task has rows for every partition; a value names its task and its place there."""
    return spark.range(0, ROWS, numPartitions=TASKS).selectExpr(
        "cast(id % 1009 as string) key",
        "concat(spark_partition_id(), ':', lpad(cast(id as string), 8, '0')) value",
    )


def save(spark: SparkSession, servers: str, topic: str, observe: Any = None) -> Reports:
    reports = Reports()
    writer = (
        sparkonce.write(keyed(spark))
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("kafka.transactional.id", f"job-{topic}")
        .option("kafka.batch.size", 16 * 1024)
        .option("kafka.request.timeout.ms", 2000)
        .option("runId", "1")
        .listener(reports)
    )
    if observe is not None:
        writer.observe(observe)
    writer.save()
    return reports


def check(servers: str, topic: str) -> None:
    seen = read(servers, topic)
    told = [(record.value or b"").decode() for record in seen]
    assert len(told) == len(set(told)) == ROWS
    places: dict[tuple[int, str], list[str]] = {}
    for record, value in zip(seen, told, strict=True):
        task, _, number = value.partition(":")
        places.setdefault((record.partition, task), []).append(number)
    assert len(places) == 3 * TASKS, "every task wrote to every partition"
    assert all(numbers == sorted(numbers) for numbers in places.values())
    assert hanging(servers, topic) == []


def test_many_tasks_and_few_partitions(spark: SparkSession, kafka: LocalKafka, topic: str) -> None:
    reports = save(spark, kafka.bootstrap_servers, topic)
    assert [(report.attempts, report.tasks) for report in reports.all] == [(1, TASKS)]
    check(kafka.bootstrap_servers, topic)


@pytest.mark.parametrize(
    "fault",
    [
        LoseResponse("Produce", nth=3, every=7, times=4),
        LoseRequest("Produce", nth=3, every=7, times=4),
        CutMidFrame("Produce", nth=3, every=7, times=4),
    ],
    ids=repr,
)
def test_turns_through_a_network_that_fails(
    spark: SparkSession, kafka: LocalKafka, topic: str, seed: int, fault: Any
) -> None:
    with FaultProxy(kafka.bootstrap_servers, faults=[fault], seed=seed) as proxy:
        save(spark, proxy.bootstrap_servers, topic)
        assert proxy.fired(fault) >= 1
    check(kafka.bootstrap_servers, topic)


def test_a_task_that_dies_dooms_the_attempt_and_not_the_batch(
    spark: SparkSession, kafka: LocalKafka, topic: str, tmp_path: Path
) -> None:
    marker = tmp_path / "died"

    def die_once(point: str) -> None:
        if point == "produce:first" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    reports = save(spark, kafka.bootstrap_servers, topic, die_once)
    assert [report.attempts for report in reports.all] == [2]
    check(kafka.bootstrap_servers, topic)


# -- the desk's side ---------------------------------------------------------------------------


def test_a_turn_is_had_by_one_at_a_time_and_goes_on_from_the_last() -> None:
    queues = Queues()
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []
    queues.want(PLACE, first.append)
    queues.want(PLACE, second.append)
    queues.want(("t", 1), second.append)
    assert first == [{"turn": PLACE, "sequence": 0}]
    assert second == [{"turn": ("t", 1), "sequence": 0}], "other partitions don't wait"
    queues.back(PLACE, 40)
    assert second[1:] == [{"turn": PLACE, "sequence": 40}]
    queues.back(PLACE, 50)
    queues.want(PLACE, first.append)
    assert first[1:] == [{"turn": PLACE, "sequence": 50}]


def test_after_a_failure_nobody_gets_a_turn() -> None:
    queues = Queues()
    holder: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    queues.want(PLACE, holder.append)
    queues.want(PLACE, waiting.append)
    queues.doom("task 3 died")
    queues.want(PLACE, late.append)
    assert waiting == late == [{"doom": "task 3 died"}]


def test_a_line_that_is_gone_is_passed_over() -> None:
    queues = Queues()
    waiting: list[dict[str, Any]] = []

    def gone(what: dict[str, Any]) -> None:
        raise BrokenPipeError

    queues.want(PLACE, lambda what: None)
    queues.want(PLACE, gone)
    queues.want(PLACE, waiting.append)
    queues.back(PLACE, 7)
    assert waiting == [{"turn": PLACE, "sequence": 7}]
