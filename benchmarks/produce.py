"""Transactional producers side by side: one run, one broker, the same records.

    scripts/bench produce [--rounds 5] [--size 1000 --size 100] [--partitions 8]

Contestants, each in a process of its own: sparkonce (Arrow tables), Kafka's own
kafka-producer-perf-test (Java, tuned: batch.size 262144, linger 5 ms) and confluent-kafka
(librdkafka from Python), tuned alike and as its documentation shows it, with its own settings and a
callback for every record. The last line is no contestant: batches encoded beforehand, sent over and
over, show what this broker takes from any client at all. All write in transactions
of about 100 ms with acks=all, no keys, no compression. The broker is warmed up first: its compiler
takes a minute of load to come to rest. Topics keep little (and are deleted after each turn), so
that page cache is used again and the disk stays empty. The order changes from round to round; what
counts are the ratios, since machines differ. CPU is the client process's, less what it takes to
start and write 1,000 records.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sparkonce.local import LocalKafka
from sparkonce.local.runtime import Runtime

TRANSACTION_MS = 100
PAYLOADS = 10_000
JAVA = "org.apache.kafka.tools.ProducerPerformance"
KEEP_LITTLE = {
    "segment.bytes": str(64 * 1024 * 1024),
    "retention.bytes": str(64 * 1024 * 1024),
    "file.delete.delay.ms": "0",
}
SWEEP = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}
CEILING = "(the broker's ceiling)"
DOCUMENTED = "confluent-kafka, as documented"
CONTESTANTS = ("sparkonce", "kafka-producer-perf-test", "confluent-kafka", DOCUMENTED, CEILING)
TABLE_BYTES = 8 * 1024 * 1024


def sparkonce_run(
    servers: str, topic: str, payloads: list[bytes], count: int, *, encode: bool = True
) -> float:
    """With `encode` off, the same batches are sent again and again: what the broker can take."""
    import pyarrow as pa

    from sparkonce import TransactionalProducer

    rows = TABLE_BYTES // len(payloads[0])
    values = list(itertools.islice(itertools.cycle(payloads), rows))
    table = pa.table({"value": pa.array(values, pa.binary())})
    settings = {"bootstrap.servers": servers, "transactional.id": f"bench-{os.getpid()}"}
    with TransactionalProducer(settings) as producer:
        producer.init_transactions()
        producer._topics.learn([topic])
        encoded = [batch for made, _ in producer._encode(table, topic) for batch in made]

        def write(part: pa.Table) -> None:
            if encode:
                producer.produce_arrow(topic, part)
            else:
                producer._enqueue(encoded, producer._reports.unreported)

        start = time.perf_counter()
        left = count
        while left:
            producer.begin_transaction()
            began = time.perf_counter()
            while left and time.perf_counter() - began < TRANSACTION_MS / 1000:
                part = table if left >= rows else table.slice(0, left)
                write(part)
                left -= part.num_rows
            producer.commit_transaction()
        return time.perf_counter() - start


def ceiling_run(servers: str, topic: str, payloads: list[bytes], count: int) -> float:
    return sparkonce_run(servers, topic, payloads, count, encode=False)


def confluent_run(servers: str, topic: str, payloads: list[bytes], count: int) -> float:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": f"bench-{os.getpid()}",
            "acks": "all",
            "batch.size": 262144,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 32 * 1024,
        }
    )

    def write(part: list[bytes]) -> None:
        for payload in part:
            while True:
                try:
                    producer.produce(topic, payload)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)

    return confluent_transactions(producer, write, payloads, count)


def documented_run(servers: str, topic: str, payloads: list[bytes], count: int) -> float:
    from confluent_kafka import KafkaError, Message, Producer

    settings = {"bootstrap.servers": servers, "transactional.id": f"bench-{os.getpid()}"}
    producer = Producer(settings)
    delivered = 0

    def report(error: KafkaError | None, message: Message) -> None:
        nonlocal delivered
        delivered += error is None

    def write(part: list[bytes]) -> None:
        for payload in part:
            producer.poll(0)
            try:
                producer.produce(topic, payload, callback=report)
            except BufferError:  # its queue is full
                producer.flush()
                producer.produce(topic, payload, callback=report)

    took = confluent_transactions(producer, write, payloads, count)
    if delivered != count:
        raise SystemExit(f"{delivered} of {count} records were delivered: a defect, not a figure")
    return took


def confluent_transactions(
    producer: Any, write: Callable[[list[bytes]], None], payloads: list[bytes], count: int
) -> float:
    producer.init_transactions()
    start = time.perf_counter()
    sent = 0
    while sent < count:
        producer.begin_transaction()
        began = time.perf_counter()
        while sent < count and time.perf_counter() - began < TRANSACTION_MS / 1000:
            part = payloads[: min(1000, count - sent)]
            write(part)
            sent += len(part)
        producer.commit_transaction()
    return time.perf_counter() - start


def child(name: str, servers: str, topic: str, payload_file: str, count: int) -> None:
    payloads = Path(payload_file).read_bytes().splitlines()
    runs = {
        "sparkonce": sparkonce_run,
        "confluent-kafka": confluent_run,
        DOCUMENTED: documented_run,
        CEILING: ceiling_run,
    }
    print(json.dumps({"seconds": runs[name](servers, topic, payloads, count)}))


def measure(
    kafka: LocalKafka, name: str, topic: str, payload_file: Path, count: int
) -> tuple[float, float]:
    """Seconds from the first record to the last commit, and the process's CPU seconds."""
    if name == "kafka-producer-perf-test":
        # Heap as kafka-producer-perf-test.sh sets it.
        command = [
            *Runtime.find().command("-Xmx512M", "-Dorg.apache.logging.log4j.level=ERROR"),
            JAVA,
            *("--topic", topic, "--num-records", str(count), "--throughput", "-1"),
            *("--payload-file", str(payload_file), "--transactional-id", f"bench-{time.time_ns()}"),
            *("--transaction-duration-ms", str(TRANSACTION_MS), "--producer-props"),
            *(f"bootstrap.servers={kafka.bootstrap_servers}", "acks=all"),
            *("batch.size=262144", "linger.ms=5"),
        ]
    else:
        here = [sys.executable, __file__, "--child", name, kafka.bootstrap_servers, topic]
        command = [*here, str(payload_file), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{name} failed with {process.returncode}: {output}")
    cpu = usage.ru_utime + usage.ru_stime
    if name == "kafka-producer-perf-test":
        (rate,) = re.findall(r"^\d+ records sent, ([\d.]+) records/sec", output, re.M)[-1:]
        return count / float(rate), cpu
    return float(json.loads(output)["seconds"]), cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, action="append", help="bytes a record (1000 and 100)")
    parser.add_argument("--megabytes", type=int, default=400, help="written per contestant")
    parser.add_argument("--warm-up", type=int, default=3, help="times --megabytes, before")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--heap-mb", type=int, default=1024)
    asked = parser.parse_args()
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="sparkonce-bench-") as folder,
        console.status("starting Kafka") as status,
        LocalKafka(asked.brokers, heap_mb=asked.heap_mb, properties=SWEEP) as kafka,
    ):
        for size in asked.size or [1000, 100]:
            payload_file = Path(folder) / f"payloads-{size}"
            lines = [os.urandom(size // 2 + 1).hex()[:size] for _ in range(PAYLOADS)]
            payload_file.write_text("\n".join(lines) + "\n")
            count = asked.megabytes * 1_000_000 // size

            def run(name: str, number: int, records: int) -> tuple[float, float]:
                topic = f"bench-{size}-{number}"  # noqa: B023
                kafka.create_topic(topic, partitions=asked.partitions, config=KEEP_LITTLE)
                try:
                    return measure(kafka, name, topic, payload_file, records)  # noqa: B023
                finally:
                    kafka.delete_topic(topic)

            number = itertools.count()
            status.update(f"{size} B: warming up")
            for name in CONTESTANTS:
                run(name, next(number), count * asked.warm_up)
            idle = {name: run(name, next(number), 1000)[1] for name in CONTESTANTS}
            seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
            cpu: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
            for turn in range(asked.rounds):
                shift = turn % len(CONTESTANTS)
                for name in CONTESTANTS[shift:] + CONTESTANTS[:shift]:
                    status.update(f"{size} B, round {turn + 1} of {asked.rounds}: {name}")
                    took, used = run(name, next(number), count)
                    seconds[name].append(took)
                    cpu[name].append(used - idle[name])
            report(console, size, count, seconds, cpu)


def report(
    console: Console,
    size: int,
    count: int,
    seconds: dict[str, list[float]],
    cpu: dict[str, list[float]],
) -> None:
    table = Table(title=f"{count:,} records of {size} B, transactions of {TRANSACTION_MS} ms")
    for column in ("contestant", "records/s", "MB/s", "sparkonce is", "CPU s/million"):
        table.add_column(column, justify="left" if column == "contestant" else "right")
    for name, took in seconds.items():
        rate = count / statistics.median(took)
        ratios = [theirs / ours for theirs, ours in zip(took, seconds["sparkonce"], strict=True)]
        table.add_row(
            name,
            f"{rate:,.0f}",
            f"{rate * size / 1e6:.0f}",
            f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{statistics.median(cpu[name]) / count * 1e6:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]))
    else:
        main()
