"""Kafka to Kafka through Spark: what is written, where, and what the ledger says of it."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sparkonce
from jobs import Job
from oracle import read, settle, values
from parts import a_producer, a_topic
from sparkonce.errors import ConfigError
from sparkonce.local import LocalKafka
from sparkonce.stream import spark_version
from stream_jobs import COUNT, EXPECTED, PARTITIONS, MakeJob, fill, jobs_on, write


def rekeyed(job: Job, spark: SparkSession) -> DataFrame:
    return job.read(spark).select(
        F.expr("concat('key-', substr(cast(value as string), -2))").alias("key"), "value"
    )


CASES = {
    "keyless": lambda job, spark: job.read(spark).select("value"),
    "kept": lambda job, spark: job.read(spark).select("key", "value", "partition"),
    "one task": lambda job, spark: rekeyed(job, spark).coalesce(1),
    "by partition": lambda job, spark: (
        job.read(spark)
        .select("value", F.expr("cast(cast(value as string) as int) % 4").alias("partition"))
        .repartition(3, "partition")
    ),
    "keyed": rekeyed,
}


@pytest.mark.parametrize("case", CASES)
def test_rows_stay_where_they_are_and_take_turns_only_where_they_must(
    spark: SparkSession, new_job: MakeJob, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    job = new_job()
    with caplog.at_level(logging.DEBUG, "sparkonce.stream"):
        reports = write(job, CASES[case](job, spark))
    plans = [record.getMessage() for record in caplog.records if ", as " in record.getMessage()]
    assert len(plans) == len(reports) == 3
    assert not any("Exchange" in plan for plan in plans)
    assert ["InTurns" in plan for plan in plans] == [case == "keyed"] * 3
    assert [report.attempts for report in reports] == [1, 1, 1]
    assert sorted(values(job.servers, job.target)) == EXPECTED


@pytest.mark.parametrize(("partitions", "tasks"), [(2, [2, 2, 2]), (4, [4, 2, 2])])
def test_more_tasks_than_partitions_write_side_by_side_without_an_exchange(
    spark: SparkSession, new_job: MakeJob, kafka: LocalKafka, partitions: int, tasks: list[int]
) -> None:
    """And where the last batch was small, one for each of the two cores is enough."""
    job = new_job()
    with a_topic(kafka, partitions=partitions) as target:
        reports = write(job, job.read(spark).select("value"), topic=target)
        assert [report.tasks for report in reports] == tasks
        assert sorted(values(job.servers, target)) == EXPECTED


def test_what_an_aborted_transaction_wrote_is_read_only_by_those_who_ask_for_it(
    spark: SparkSession, new_job: MakeJob, kafka: LocalKafka
) -> None:
    job, other = new_job(count=0), new_job(count=0)
    good, bad = ([f"{kind} {number}".encode() for number in range(20)] for kind in ("ok", "no"))
    with a_producer(kafka) as producer:
        for values_of_it, end in (
            (good, producer.commit_transaction),
            (bad, producer.abort_transaction),
        ):
            producer.begin_transaction()
            for value in values_of_it:
                producer.produce(job.source, value)
            producer.flush()
            end()
    write(job, job.read(spark).select("value"))
    assert sorted(values(job.servers, job.target)) == sorted(good)
    uncommitted = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.servers)
        .option("subscribe", job.source)
        .option("startingOffsets", "earliest")
    )
    write(other, uncommitted.load().select("value"))
    assert sorted(values(other.servers, other.target)) == sorted(good + bad)


def test_keyed_rows_land_where_javas_partitioner_would_put_them(
    spark: SparkSession, new_job: MakeJob, kafka: LocalKafka
) -> None:
    """The same keys, written by Kafka's own console producer into a topic as large."""
    job = new_job()
    write(job, rekeyed(job, spark))
    ours = {record.key: record.partition for record in read(job.servers, job.target)}
    with a_topic(kafka, partitions=PARTITIONS) as other:
        lines = "".join(f"{key.decode()}:x\n" for key in ours if key)
        done = kafka.run_tool(
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", kafka.bootstrap_servers, "--topic", other),
            *("--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
            input=lines,
        )
        assert done.returncode == 0, done.stderr
        javas = {record.key: record.partition for record in read(job.servers, other)}
    assert len(ours) == 100
    assert ours == javas


def test_order_within_a_partition_is_the_order_of_the_source(
    spark: SparkSession, new_job: MakeJob
) -> None:
    job = new_job()
    write(job, job.read(spark).select("key", "value"))
    told: dict[bytes | None, list[bytes]] = {}
    for record in read(job.servers, job.target):
        told.setdefault(record.key, []).append(record.value or b"")
    assert len(told) == 10
    assert all(of_key == sorted(of_key) for of_key in told.values())


def test_several_sources_and_several_targets_in_one_transaction(
    spark: SparkSession, new_job: MakeJob, kafka: LocalKafka
) -> None:
    job = new_job()
    with a_topic(kafka) as source, a_topic(kafka, partitions=2) as target:
        fill(job.servers, source, 1000, 500)
        number = F.expr("cast(cast(value as string) as int)")
        rows = job.read(spark, f"{job.source},{source}").select(
            "key", "value", F.when(number % 2 == 0, job.target).otherwise(target).alias("topic")
        )
        reports = write(job, rows, topic="")
        even, odd = values(job.servers, job.target), values(job.servers, target)
        assert sorted(even) == [f"{each:06}".encode() for each in range(0, 1500, 2)]
        assert sorted(odd) == [f"{each:06}".encode() for each in range(1, 1500, 2)]
        both = Counter()
        for report in reports:
            both.update(report.targets)
        assert both == {job.target: 750, target: 750}
        assert all(len(report.targets) == 2 for report in reports)


def test_kafkas_own_tool_shows_the_pipelines_lag(
    spark: SparkSession, new_job: MakeJob, kafka: LocalKafka
) -> None:
    job = new_job()
    job.run(spark)
    fill(job.servers, job.source, COUNT, 7)
    told = kafka.run_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", job.servers, "--describe", "--group", job.name),
    )
    lags = [line.split()[5] for line in told.stdout.splitlines() if job.source in line]
    assert len(lags) == PARTITIONS
    assert sum(map(int, lags)) == 7


def test_batches_without_rows_cost_no_transaction(spark: SparkSession, new_job: MakeJob) -> None:
    job = new_job()
    rows = job.read(spark).select("value").where("cast(cast(value as string) as int) = 0")
    reports = write(job, rows)
    assert [report.outcome for report in reports] == ["committed", "empty", "empty"]
    assert values(job.servers, job.target) == [b"000000"]
    # Each transaction raises the epoch by one: there was none in between.
    fill(job.servers, job.source, COUNT, 400)
    after = write(job, job.read(spark).select("value"))
    assert after[0].epoch - reports[0].epoch <= 3


def test_headers_and_null_values_pass_through(spark: SparkSession, new_job: MakeJob) -> None:
    job = new_job(count=2)
    header = "array(named_struct('key', 'trace', 'value', cast('7' as binary)))"
    rows = job.read(spark).select(
        "key",
        F.expr("if(value = cast('000001' as binary), null, value)").alias("value"),
        F.expr(header).alias("headers"),
    )
    write(job, rows)
    seen = read(job.servers, job.target)
    assert sorted(record.value or b"none" for record in seen) == [b"000000", b"none"]
    assert [record.headers for record in seen] == [[("trace", b"7")]] * 2


def test_records_of_aborted_transactions_are_not_read(
    spark: SparkSession, new_job: MakeJob, kafka: LocalKafka
) -> None:
    job = new_job(count=0)
    with a_producer(kafka) as producer:
        for number in range(20):
            producer.begin_transaction()
            producer.produce(job.source, f"{number:06}")
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    write(job, job.read(spark).select("value"))
    kept = [f"{number:06}".encode() for number in range(0, 20, 2)]
    assert sorted(values(job.servers, job.target)) == kept


def test_brokers_with_the_first_version_of_transactions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As clusters are that were upgraded from before 4.0; with an attempt that fails."""
    with LocalKafka(transaction_version=1) as older, jobs_on(older, tmp_path) as new_job:
        job = new_job(kind="keyed")
        marker = str(tmp_path / "failed")

        def fail_once(point: str) -> None:
            if point == "produce:last" and not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("a first attempt")

        reports = write(job, job.frame(spark)[0], observe=fail_once)
        assert [report.attempts for report in reports] == [2, 1, 1]
        assert sorted(values(job.servers, job.target)) == EXPECTED
        settle(job.servers, job.target)


def test_a_stream_with_repeats_is_deduplicated(spark: SparkSession, new_job: MakeJob) -> None:
    job = new_job()
    fill(job.servers, job.source, 0, COUNT)
    rows = sparkonce.deduplicate(
        job.read(spark).select("value", "timestamp"), ["value"], "1 hour", "timestamp"
    )
    write(job, rows.select("value"))
    assert sorted(values(job.servers, job.target)) == EXPECTED


def test_the_plain_reader_of_spark_works_as_well(spark: SparkSession, new_job: MakeJob) -> None:
    job = new_job()
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.servers)
        .option("subscribe", job.source)
        .option("startingOffsets", "earliest")
        .load()
    )
    write(job, rows)
    seen = read(job.servers, job.target)
    assert sorted(record.value or b"" for record in seen) == EXPECTED
    sources = {(record.key, record.partition) for record in read(job.servers, job.source)}
    assert {(record.key, record.partition) for record in seen} == sources


def test_a_spark_that_recovery_does_not_know_is_refused_before_anything_is_touched(
    spark: SparkSession, new_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that runs, whichever PySpark is installed."""
    job = new_job(count=0)
    monkeypatch.setattr(spark_version, "KNOWN", ("3.9",))
    with pytest.raises(ConfigError, match=f"this is Spark {spark.version}, .* tested with 3.9"):
        job.start(spark)
    assert not Path(job.checkpoint).exists()
