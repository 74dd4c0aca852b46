"""Many tasks write to few partitions in turns: nothing is lost, repeated or out of order."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkonce
import sparkonce.stream.claim
import sparkonce.stream.turns
from oracle import read, settle
from parts import a_producer, a_topic, wait_until
from sparkonce import TransactionalProducer
from sparkonce.encode import EncodedBatch
from sparkonce.errors import AbortableError, StateError
from sparkonce.local import LocalKafka
from sparkonce.stream.claim import Line
from sparkonce.stream.turns import Queues, Turns
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
    settle(servers, topic)


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
    queues.want(PLACE, "first", first.append)
    queues.want(PLACE, "second", second.append)
    queues.want(("t", 1), "second", second.append)
    assert first == [{"turn": PLACE, "sequence": 0}]
    assert second == [{"turn": ("t", 1), "sequence": 0}], "other partitions don't wait"
    queues.back(PLACE, 40)
    assert second[1:] == [{"turn": PLACE, "sequence": 40}]
    queues.back(PLACE, 50)
    queues.want(PLACE, "first", first.append)
    assert first[1:] == [{"turn": PLACE, "sequence": 50}]


def test_after_a_failure_nobody_gets_a_turn() -> None:
    queues = Queues()
    holder: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    queues.want(PLACE, "holder", holder.append)
    queues.want(PLACE, "waiting", waiting.append)
    queues.doom("task 3 died")
    queues.want(PLACE, "late", late.append)
    assert waiting == late == [{"doom": "task 3 died"}]


def test_a_turn_that_is_held_for_too_long_is_told_with_its_holder() -> None:
    now_s = 100.0
    queues = Queues(lambda: now_s)
    waiting: list[dict[str, Any]] = []
    queues.want(PLACE, "task 3", lambda what: None)
    queues.want(("t", 1), "task 4", lambda what: None)
    queues.back(("t", 1), 7)
    queues.want(PLACE, "task 5", waiting.append)
    assert queues.overdue(99.0) is None
    assert queues.overdue(100.0) == "task 3 has held its turn at t-0"
    now_s = 200.0
    queues.back(PLACE, 3)
    assert queues.overdue(199.0) is None, "the next one has it since then"
    queues.doom("it is over")
    assert queues.overdue(300.0) is None, "told once"


# -- a task's side: whatever happens, it does not wait for ever ------------------------------------


@pytest.fixture
def line() -> Iterator[tuple[Line, socket.socket]]:
    """A task's line, and the driver's end of it."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(30.0)
    with ours, theirs:
        yield Line(ours), theirs


@pytest.fixture
def joined(kafka: LocalKafka, topic: str) -> Iterator[TransactionalProducer]:
    with a_producer(kafka) as owner:
        owner.begin_transaction()
        settings = {"bootstrap.servers": kafka.bootstrap_servers}
        with TransactionalProducer.join(settings, owner.identity) as producer:
            yield producer
        owner.abort_transaction()


def encoded(producer: TransactionalProducer, topic: str) -> list[EncodedBatch]:
    table = pa.table({"value": [b"a", b"b"], "partition": pa.array([1, 1], pa.int32())})
    (batches,) = producer.encode_arrow(topic, table)
    return batches


def told(theirs: socket.socket) -> Any:
    """The next thing that the task says."""
    said = b""
    while not said.endswith(b"\n"):
        said += theirs.recv(1)
    return json.loads(said)


def test_a_task_that_hears_nonsense_fails_with_its_cause(
    joined: TransactionalProducer, topic: str, line: tuple[Line, socket.socket]
) -> None:
    ours, theirs = line
    turns = Turns(joined, ours.tell, wait_s=600.0)
    ours.listen(turns.hear, turns.fail)
    turns.write(encoded(joined, topic))
    assert told(theirs) == {"want": [topic, 1]}
    theirs.sendall(b'{"turn": ["another", 0], "sequence": 0}\n')
    with pytest.raises(AbortableError, match=r"not heard of any more: KeyError") as failed:
        turns.finish()
    assert isinstance(failed.value.__cause__, KeyError)


def test_a_task_whose_producer_is_gone_when_its_turn_comes_fails_with_that(
    joined: TransactionalProducer, topic: str, line: tuple[Line, socket.socket]
) -> None:
    ours, theirs = line
    turns = Turns(joined, ours.tell, wait_s=600.0)
    ours.listen(turns.hear, turns.fail)
    turns.write(encoded(joined, topic))
    joined.close()
    theirs.sendall(json.dumps({"turn": [topic, 1], "sequence": 0}).encode() + b"\n")
    with pytest.raises(StateError):
        turns.finish()


def test_a_turn_that_can_not_be_given_back_fails_the_task(
    joined: TransactionalProducer, topic: str, line: tuple[Line, socket.socket]
) -> None:
    ours, theirs = line
    said: list[dict[str, Any]] = []

    def tell(what: dict[str, Any]) -> None:
        said.append(what)
        if "back" in what:
            raise RuntimeError("of a kind that nobody thought of")

    turns = Turns(joined, tell, wait_s=600.0)
    ours.listen(turns.hear, turns.fail)
    turns.write(encoded(joined, topic))
    theirs.sendall(json.dumps({"turn": [topic, 1], "sequence": 0}).encode() + b"\n")
    with pytest.raises(AbortableError, match="nobody thought of"):
        turns.finish()
    assert [*said[1]] == ["back", "sequence"]


def test_a_driver_that_says_nothing_is_waited_for_as_long_as_a_transaction(
    joined: TransactionalProducer, topic: str, line: tuple[Line, socket.socket]
) -> None:
    ours, _ = line
    turns = Turns(joined, ours.tell, wait_s=0.2)
    ours.listen(turns.hear, turns.fail)
    turns.write(encoded(joined, topic))
    with pytest.raises(
        AbortableError, match=rf"no turn came in transaction.timeout.ms=200 at {topic}-1"
    ):
        turns.finish()


def test_one_who_has_too_much_is_bounded_too(
    joined: TransactionalProducer, topic: str, line: tuple[Line, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sparkonce.stream.turns, "_HELD_BYTES_MAX", 1)
    ours, _ = line
    turns = Turns(joined, ours.tell, wait_s=0.2)
    turns.write(encoded(joined, topic))
    with pytest.raises(AbortableError, match="no turn came"):
        turns.write(encoded(joined, topic))


def test_a_driver_that_does_not_hang_up_is_not_waited_for_for_ever(
    line: tuple[Line, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparkonce.stream.claim, "_TIMEOUT_S", 0.2)
    ours, _ = line
    heard: list[BaseException] = []
    ours.listen(lambda said: None, heard.append)
    with pytest.raises(AbortableError, match=r"told that all is written and did not answer"):
        ours.end(None)
    wait_until(lambda: heard, "the thread that listened has ended")
