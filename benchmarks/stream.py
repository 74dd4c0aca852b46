"""Kafka to Kafka through Spark: exactly once through sparkonce beside Spark's own sink.

    scripts/bench stream [--rounds 3] [--warm-up 4] [--size 1000 --size 100] [--megabytes 400]
                         [--batches 8]

One run, one broker, one Spark session, the same records out of the same topic. Contestants:
sparkonce (exactly once) as its documentation shows it, read by `sparkonce.read_stream`; Spark's own
sink (at least once) as Spark's documentation shows it; and Spark's own sink behind our reader, so
that one sees what comes from which end. They write rows as they lie (`kept`: key, value and
partition of the source), without keys (`keyless`) and with another key (`rekeyed`: every row goes
to another partition). No contestant, but a ceiling: the same rows handed to Python and written
nowhere.

Each turn reads the whole topic in batches, and its speed is that of its median batch, start to end
as Spark itself reports it. Rounds before the first are not counted: it takes the JVM a minute or
two of such work until it has compiled what it runs. The last lines have the time of a batch of a
hundred records: of a topic that has many more, and of one that has just these, as under light load.
The order changes from round to round; what counts are the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from contest import Reports, handing_over, reader
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

import sparkonce
from sparkonce import Producer
from sparkonce.local import LocalKafka

PARTITIONS = 8
WARM_UP = 2
LIGHT_RECORDS = 100
LIGHT_BATCHES, LIGHT_WARM_UP = 25, 5
LIVE_BATCHES, LIVE_WARM_UP = 10, 3
MANY, JUST = f"{LIGHT_RECORDS} of many", f"{LIGHT_RECORDS} that just came"
KEEP_LITTLE = {
    "segment.bytes": str(64 * 1024 * 1024),
    "retention.bytes": str(64 * 1024 * 1024),
    "file.delete.delay.ms": "0",
}
SWEEP = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}
OURS, SPARKS = "sparkonce, exactly once", "Spark's own, at least once"
READ_ALIKE = "Spark's own behind our reader"
HANDED = "handed to Python only"


def fill(servers: str, topic: str, size: int, count: int) -> None:
    rows = min(count, 8 * 1024 * 1024 // size)
    noise = os.urandom(rows * (size - 8))
    step = size - 8
    with Producer({"bootstrap.servers": servers}) as producer:
        for first in range(0, count, rows):
            numbers = range(first, min(first + rows, count))
            values = [
                number.to_bytes(8, "big") + noise[at * step : (at + 1) * step]
                for at, number in enumerate(numbers)
            ]
            keys = [str(number % 10_000).encode() for number in numbers]
            producer.produce_arrow(topic, pa.table({"key": keys, "value": values}))


def frame(
    contestant: str, spark: SparkSession, servers: str, topic: str, kind: str, per_batch: int
) -> DataFrame:
    rows = (
        reader(spark, as_spark_comes=contestant == SPARKS)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    if kind == "kept":
        return rows.select("key", "value", "partition")
    if kind == "keyless":
        return rows.select("value")
    return rows.selectExpr("substring(value, 5, 4) as key", "value")


@contextmanager
def query_of(
    contestant: str, rows: DataFrame, servers: str, target: str, size: int, **trigger: bool
) -> Iterator[tuple[StreamingQuery, Reports]]:
    """A query that runs, and our own reports of its batches where there are any."""
    reports = Reports()
    to_kafka = {"kafka.bootstrap.servers": servers, "topic": target}
    if contestant == OURS:
        writer = sparkonce.write_stream(rows).options(**to_kafka).listener(reports)
        writer = writer.option("kafka.transactional.id", target)
    elif contestant in (SPARKS, READ_ALIKE):
        writer = rows.writeStream.format("kafka").options(**to_kafka)
    else:
        hand_over = handing_over(size)
        writer = rows.writeStream.foreachBatch(lambda batch, _: hand_over(batch))
    if trigger:
        writer = writer.trigger(**trigger)
    with tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as folder:
        query = writer.option("checkpointLocation", folder).start()
        yield query, reports
        query.stop()


def run(
    contestant: str, rows: DataFrame, servers: str, target: str, size: int
) -> tuple[list, list]:
    """Spark's own report of each batch until all is read, and ours where there is one."""
    with query_of(contestant, rows, servers, target, size, availableNow=True) as (query, reports):
        query.awaitTermination()
        return list(query.recentProgress), reports.all


def run_live(
    contestant: str, rows: DataFrame, servers: str, source: str, target: str, size: int
) -> list:
    """The same of a query that has read everything when a few records more are written."""
    with query_of(contestant, rows, servers, target, size) as (query, _):
        for _ in range(LIVE_BATCHES):
            query.processAllAvailable()
            fill(servers, source, size, LIGHT_RECORDS)
        query.processAllAvailable()
        return [each for each in query.recentProgress if each["numInputRows"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=4, help="rounds before the first")
    parser.add_argument("--size", type=int, action="append", help="bytes of a record's value")
    parser.add_argument("--megabytes", type=int, default=400, help="in the source topic")
    parser.add_argument("--batches", type=int, default=8, help="in which it is read")
    parser.add_argument("--kind", action="append", help="kept, keyless, rekeyed")
    arguments = parser.parse_args()
    console = Console()
    os.environ["SPARKONCE_HISTORY"] = ""
    spark = sparkonce.session("bench", "local[2]", {"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    with LocalKafka(properties=SWEEP, heap_mb=1024) as kafka:
        for size in arguments.size or [1000, 100]:
            measure(console, spark, kafka, size, arguments)
    spark.stop()


def measure(
    console: Console,
    spark: SparkSession,
    kafka: LocalKafka,
    size: int,
    arguments: argparse.Namespace,
) -> None:
    servers = kafka.bootstrap_servers
    count = arguments.megabytes * 1_000_000 // size
    source = f"source-{size}"
    kafka.create_topic(source, PARTITIONS)
    fill(servers, source, size, count)
    speeds: dict[tuple[str, str], list[float]] = {}
    light: dict[tuple[str, str], list[float]] = {}
    steps: list[float] = []
    turn = 0
    for number in range(-arguments.warm_up, arguments.rounds):
        for kind in arguments.kind or ["kept", "keyless", "rekeyed"]:
            order = [OURS, SPARKS, READ_ALIKE, *([HANDED] if kind == "kept" else [])]
            for contestant in order if number % 2 == 0 else reversed(order):
                turn += 1
                target = f"target-{size}-{turn}"
                kafka.create_topic(target, PARTITIONS, config=KEEP_LITTLE)
                per_batch = count // arguments.batches
                rows = frame(contestant, spark, servers, source, kind, per_batch)
                progress, reports = run(contestant, rows, servers, target, size)
                speed = statistics.median(
                    each["numInputRows"] / each["durationMs"]["triggerExecution"] * 1000
                    for each in progress[WARM_UP:]
                )
                kafka.delete_topic(target)
                note = "warm-up" if number < 0 else f"round {number + 1}"
                console.print(f"{size} B, {note}, {kind}, {contestant}: {speed:,.0f} records/s")
                if number >= 0:
                    speeds.setdefault((kind, contestant), []).append(speed)
                    steps += [report.transaction_ms for report in reports[WARM_UP:]]
        all_three = (OURS, SPARKS, READ_ALIKE)
        for contestant in all_three if number % 2 else reversed(all_three):
            turn += 1
            target, few = f"target-{size}-{turn}", f"few-{size}-{turn}"
            live_target = f"{target}-live"
            for topic in (target, live_target, few):
                kafka.create_topic(topic, PARTITIONS)
            fill(servers, few, size, LIGHT_RECORDS * LIGHT_BATCHES)
            rows = frame(contestant, spark, servers, few, "kept", LIGHT_RECORDS)
            behind, reports = run(contestant, rows, servers, target, size)
            rows = frame(contestant, spark, servers, few, "kept", 1_000_000)
            live = run_live(contestant, rows, servers, few, live_target, size)
            for topic in (target, live_target, few):
                kafka.delete_topic(topic)
            if number < 0:
                continue
            for what, batches in ((MANY, behind[LIGHT_WARM_UP:]), (JUST, live[LIVE_WARM_UP:])):
                times = [each["durationMs"]["triggerExecution"] for each in batches]
                light.setdefault((what, contestant), []).append(statistics.median(times))
            steps += [report.transaction_ms for report in reports[LIGHT_WARM_UP:]]
    kafka.delete_topic(source)
    show(console, size, speeds, light, steps)


def show(
    console: Console,
    size: int,
    speeds: dict[tuple[str, str], list[float]],
    light: dict[tuple[str, str], list[float]],
    steps: list[float],
) -> None:
    table = Table(title=f"records of {size} B", title_justify="left")
    for column in ("rows", OURS, SPARKS, "ratio", READ_ALIKE, "ratio"):
        table.add_column(column, justify="left" if column == "rows" else "right")
    for kind in dict.fromkeys(kind for kind, _ in speeds):
        told = [speeds[kind, each] for each in (OURS, SPARKS, READ_ALIKE)]
        table.add_row(kind, *compared(told, "{:,.0f}/s"))
    if ("kept", HANDED) in speeds:
        told = [speeds["kept", each] for each in (HANDED, SPARKS, READ_ALIKE)]
        table.add_row(f"({HANDED})", *compared(told, "{:,.0f}/s"), style="dim")
    for what in (MANY, JUST):
        told = [light[what, each] for each in (OURS, SPARKS, READ_ALIKE)]
        table.add_row(f"a batch of {what}", *compared(told, "{:.0f} ms"))
    console.print(table)
    ordered = sorted(steps)
    console.print(
        f"transaction steps (fence, record, decide): median {statistics.median(steps):.1f} ms, "
        f"9 of 10 below {ordered[int(len(ordered) * 0.9)]:.1f} ms"
    )


def compared(told: list[list[float]], form: str) -> Iterator[str]:
    """The first one's median, and those of the others with the ratio round by round."""
    ours, *others = told
    yield form.format(statistics.median(ours))
    for theirs in others:
        yield form.format(statistics.median(theirs))
        yield spread([a / b for a, b in zip(ours, theirs, strict=True)])


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"{time.monotonic() - started:.0f} s; {Path(__file__).name}")
