"""A producer's memory is bounded by buffer.memory, however much is written and in what pieces."""

from __future__ import annotations

import multiprocessing
import os
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest

from oracle import settle
from sparkonce import TransactionalProducer
from sparkonce.errors import Unreachable
from sparkonce.local import LocalKafka
from sparkonce.verify import FaultProxy

MEGABYTES = 400
PEAK_MB_MAX = 300
RECORD_BYTES = 1000

# Segments that may go soon, and no second copy of a topic that is deleted.
SHORT_LIVED = {
    "segment.bytes": str(16 * 1024 * 1024),
    "retention.bytes": str(32 * 1024 * 1024),
    "file.delete.delay.ms": "0",
}
# Table size and transaction size in MB: many small tables in many transactions, and a stream of
# large ones in a single transaction.
SHAPES = {"small tables": (1, 20), "one long transaction": (16, MEGABYTES)}


def tables(table_mb: int) -> Iterator[pa.Table]:
    rows = table_mb * 1_000_000 // RECORD_BYTES
    for _ in range(0, MEGABYTES, table_mb):
        # Fresh bytes each time: what is kept by mistake then adds up.
        content = pa.py_buffer(os.urandom(rows * RECORD_BYTES))
        array = pa.Array.from_buffers(pa.binary(RECORD_BYTES), rows, [None, content])
        yield pa.table({"value": array.cast(pa.binary())})


def _write(
    servers: str, topic: str, table_mb: int, transaction_mb: int, parent: Connection
) -> None:
    settings = {"bootstrap.servers": servers, "transactional.id": topic}
    with TransactionalProducer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number, table in enumerate(tables(table_mb), start=1):
            producer.produce_arrow(topic, table)
            if number * table_mb % transaction_mb == 0:
                producer.commit_transaction()
                producer.begin_transaction()
        producer.commit_transaction()
    parent.send(_peak_mb())


def _write_into_nothing(servers: str, topic: str, parent: Connection) -> None:
    """All tables at once, while nobody takes them; the buffer's limit must end it."""
    settings = {"bootstrap.servers": servers, "transactional.id": topic, "max.block.ms": 2000}
    producer = TransactionalProducer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, "first")
    producer.flush()
    parent.send("connected")
    parent.recv()
    with pytest.raises(
        Unreachable, match=r"buffer\.memory=\d+ stayed full for max\.block\.ms=2000"
    ):
        for table in tables(16):
            producer.produce_arrow(topic, table)
    parent.send(_peak_mb())
    os._exit(0)  # closing would wait for the brokers, to abort


def _peak_mb() -> float:
    """Of this program alone; getrusage also counts what the parent had before exec."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("shape", SHAPES)
def test_the_peak_stays_far_below_what_is_written(kafka: LocalKafka, shape: str) -> None:
    topic = f"m-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions=4, config=SHORT_LIVED)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (kafka.bootstrap_servers, topic, *SHAPES[shape], theirs)
    child = context.Process(target=_write, args=arguments)
    try:
        child.start()
        child.join()
        assert child.exitcode == 0
        peak_mb = ours.recv()
        print(f"peak: {peak_mb:.0f} MB")
        settle(kafka.bootstrap_servers, topic)
    finally:
        child.kill()
        kafka.delete_topic(topic)
    assert peak_mb < PEAK_MB_MAX


def test_brokers_that_take_nothing_stop_the_writer_and_not_the_machine(
    kafka: LocalKafka, plain_topic: str, seed: int
) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with FaultProxy(kafka.bootstrap_servers, seed=seed) as proxy:
        arguments = (proxy.bootstrap_servers, plain_topic, theirs)
        child = context.Process(target=_write_into_nothing, args=arguments)
        child.start()
        try:
            assert ours.poll(60)
            assert ours.recv() == "connected"
            proxy.stop_accepting()
            proxy.cut_all()
            ours.send("go on")
            assert ours.poll(60), "the writer never stopped"
            peak_mb = ours.recv()
            child.join()
            assert child.exitcode == 0
        finally:
            child.kill()
    print(f"peak: {peak_mb:.0f} MB")
    assert peak_mb < PEAK_MB_MAX
