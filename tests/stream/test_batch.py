"""A DataFrame written as one transaction, once for each run id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

import sparkonce
from oracle import committed_offset, read, settle, values
from parts import a_producer, a_topic
from sparkonce.errors import ConfigError
from sparkonce.local import LocalKafka
from sparkonce.stream.batch import BatchWriter
from sparkonce.stream.ledger import LedgerError
from stream_jobs import Reports


@pytest.fixture
def topic(kafka: LocalKafka) -> Iterator[str]:
    with a_topic(kafka) as name:
        yield name


def writer(kafka: LocalKafka, topic: str, frame: DataFrame, **options: Any) -> BatchWriter:
    given = {"topic": topic, "runId": "2026-11-15"} | options
    made = (
        sparkonce.write(frame)
        .format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("kafka.transactional.id", f"job-{topic}")
    )
    for name, value in given.items():
        made.option(name, value)
    return made


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("cast(id % 7 as string) key", "cast(id as string) value")


def test_a_run_is_written_once_whatever_how_often_it_is_run(
    spark: SparkSession, kafka: LocalKafka, topic: str
) -> None:
    frame = numbers(spark, 5000)
    reports = Reports()
    for _ in range(3):
        writer(kafka, topic, frame).listener(reports).save()
    assert sorted(values(kafka.bootstrap_servers, topic), key=int) == [
        str(number).encode() for number in range(5000)
    ]
    assert [report.outcome for report in reports.all] == ["committed", "skipped", "skipped"]
    writer(kafka, topic, numbers(spark, 10), runId="2026-11-16").save()
    assert len(values(kafka.bootstrap_servers, topic)) == 5010
    done = committed_offset(kafka.bootstrap_servers, f"job-{topic}~run~2026-11-16", topic, 0)
    assert done >= 0


def move_ledger(kafka: LocalKafka, former: str, now: str) -> None:
    """Let one group have what the other had."""
    with a_producer(kafka) as producer, producer.transaction():
        producer.send_offsets_to_transaction(producer.committed_offsets(former), now)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_consumer_groups([former])[former].result(30)


def test_a_run_that_version_0_1_0_wrote_is_not_written_again(
    spark: SparkSession, kafka: LocalKafka, topic: str
) -> None:
    writer(kafka, topic, numbers(spark, 100)).save()
    move_ledger(kafka, f"job-{topic}~run~2026-11-15", f"job-{topic}-run-2026-11-15")
    reports = Reports()
    writer(kafka, topic, numbers(spark, 100)).listener(reports).save()
    assert [report.outcome for report in reports.all] == ["skipped"]
    assert len(values(kafka.bootstrap_servers, topic)) == 100


def test_the_ledger_of_a_pipeline_is_not_taken_for_a_run(
    spark: SparkSession, kafka: LocalKafka, topic: str
) -> None:
    """A pipeline's name that the run's ledger had in version 0.1.0; and an entry that somebody
    else has put under the name that it has now."""
    pipeline = {"kafka.transactional.id": f"job-{topic}-run-1"}
    writer(kafka, topic, numbers(spark, 100), runId="a", **pipeline).save()
    move_ledger(kafka, f"job-{topic}-run-1~run~a", f"job-{topic}-run-1")
    writer(kafka, topic, numbers(spark, 100), runId="1").save()
    assert len(values(kafka.bootstrap_servers, topic)) == 200
    move_ledger(kafka, f"job-{topic}~run~1", f"job-{topic}~run~2")
    with pytest.raises(LedgerError, match="not this run wrote it") as refused:
        writer(kafka, topic, numbers(spark, 100), runId="2").save()
    assert f"'job-{topic}~run~2'" in str(refused.value) and "of run 1" in str(refused.value)
    assert len(values(kafka.bootstrap_servers, topic)) == 200


def test_all_of_it_becomes_visible_at_once_or_nothing(
    spark: SparkSession, kafka: LocalKafka, topic: str
) -> None:
    seen: list[int] = []
    servers = kafka.bootstrap_servers

    def fail_at_the_end(point: str) -> None:
        if point == "end":
            seen.append(len(values(servers, topic, while_open=True)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer(kafka, topic, numbers(spark, 1000)).observe(fail_at_the_end).save()
    assert seen == [0]
    settle(kafka.bootstrap_servers, topic)
    assert values(kafka.bootstrap_servers, topic) == []
    writer(kafka, topic, numbers(spark, 1000)).save()
    assert len(values(kafka.bootstrap_servers, topic)) == 1000


def test_a_frame_without_rows_costs_nothing_and_is_no_run(
    spark: SparkSession, kafka: LocalKafka, topic: str
) -> None:
    writer(kafka, topic, numbers(spark, 0)).save()
    writer(kafka, topic, numbers(spark, 3)).save()
    assert len(values(kafka.bootstrap_servers, topic)) == 3


def test_rows_say_their_topic(spark: SparkSession, kafka: LocalKafka, topic: str) -> None:
    with a_topic(kafka, partitions=1) as other:
        frame = numbers(spark, 100).selectExpr(
            "key", "value", f"if(cast(value as int) < 30, '{topic}', '{other}') topic"
        )
        made = (
            sparkonce.write(frame)
            .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
            .options(**{"kafka.transactional.id": f"job-{topic}", "runId": "1"})
        )
        made.save()
        made.save()
        assert len(values(kafka.bootstrap_servers, topic)) == 30
        assert len(values(kafka.bootstrap_servers, other)) == 70


def test_a_shuffled_frame_is_written_whole(
    spark: SparkSession, kafka: LocalKafka, topic: str
) -> None:
    """Adaptive execution settles on its tasks while it runs."""
    frame = numbers(spark, 20_000).groupBy("key").count().selectExpr("cast(count as string) value")
    writer(kafka, topic, frame).save()
    counts = sorted(int(value or b"") for value in values(kafka.bootstrap_servers, topic))
    assert sum(counts) == 20_000 and len(counts) == 7


def test_what_is_missing_is_named(spark: SparkSession, kafka: LocalKafka, topic: str) -> None:
    made = sparkonce.write(numbers(spark, 1)).option("topic", topic)
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        made.save()
    made.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    with pytest.raises(ConfigError, match=r"kafka\.transactional\.id is missing"):
        made.save()
    made.option("kafka.transactional.id", "job")
    with pytest.raises(ConfigError, match="runId is missing"):
        made.save()


def test_a_dead_letter_topic_smaller_than_the_tasks_are_many(
    spark: SparkSession, kafka: LocalKafka, topic: str
) -> None:
    """Keyless rows lie right, their letters go in turns: no task has a partition for them alone."""
    with a_topic(kafka, partitions=1) as letters:
        frame = spark.range(0, 1000, numPartitions=4).selectExpr(
            "cast(id as string) value", "if(id % 100 = 7, 'odd', null) dead_letter"
        )
        reports = Reports()
        writer(kafka, topic, frame, deadLetterTopic=letters).listener(reports).save()
        assert len(values(kafka.bootstrap_servers, topic)) == 990
        assert len(values(kafka.bootstrap_servers, letters)) == 10
        (report,) = reports.all
        assert (report.batch, report.query_id, report.attempts) == ("2026-11-15", "", 1)


def test_marked_and_unfit_rows_go_to_the_dead_letters_with_their_source(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    with (
        a_topic(kafka, config={"max.message.bytes": "2000"}) as target,
        a_topic(kafka, partitions=1) as letters,
    ):
        frame = spark.range(0, 1000, numPartitions=3).selectExpr(
            "cast(id as string) key",
            "if(id = 7, repeat('x', 5000), cast(id as string)) value",
            "if(id = 8, 'not a payment', null) dead_letter",
            "if(id = 9, 99, cast(id % 4 as int)) partition",
            "named_struct('topic', 'from', 'partition', 1, 'offset', id) source",
        )
        reports = Reports()
        writer(kafka, target, frame, deadLetterTopic=letters).listener(reports).save()
        assert len(values(kafka.bootstrap_servers, target)) == 997
        found = {record.key: dict(record.headers or []) for record in read(
            kafka.bootstrap_servers, letters)}  # fmt: skip
        assert sorted(found) == [b"7", b"8", b"9"]
        assert b"too large" in found[b"7"]["sparkonce.dead.reason"]
        assert found[b"8"]["sparkonce.dead.reason"] == b"not a payment"
        assert b"out of range" in found[b"9"]["sparkonce.dead.reason"]
        for key, headers in found.items():
            assert headers["sparkonce.dead.source.topic"] == b"from"
            assert headers["sparkonce.dead.source.partition"] == b"1"
            assert headers["sparkonce.dead.source.offset"] == key
        assert (reports.all[0].records, reports.all[0].dead_letters) == (997, 3)
