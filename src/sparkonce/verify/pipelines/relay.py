"""The producer alone: read with confluent-kafka, write with ours, in this process.

The four guarantees are the order of two writes, data and progress; see docs/guarantees.md. Settings
of its own turn parts off, for controls that have to be noticed: `verify.offsets=outside` commits
progress after the transaction, `verify.transactions=off` only claims to write in one, and with
`verify.guarantee=unchecked` the producer does not refuse settings that break the promise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, Message, TopicPartition

from sparkonce.errors import AbortableError, BrokerError, OutcomeUnknown, Unreachable
from sparkonce.produce import Delivery, Producer, TransactionalProducer
from sparkonce.verify.contract import Job, Record, Unit

NAME = "producer"
GUARANTEES = ("none", "at_most_once", "at_least_once", "exactly_once")
POINTS = ("fence", "open", "produce:first", "produce:last", "offsets", "end", "end:answered")
SHARES = True

_DECISIONS_MAX = 20
_POLL_S = 0.2
_OWN = "verify."
_PLAN = "transactions.jsonl"


def identity(record: Record) -> str:
    return (record.value or b"").decode()


def units(job: Job) -> dict[str, Unit]:
    """What was planned for each transaction, before it began."""
    plan = Path(job.folder, _PLAN)
    lines = plan.read_text().splitlines() if plan.exists() else []
    # A life that was killed while it wrote leaves half a line.
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return {
        f"transaction of {json.dumps(unit)}": {
            int(index): (first, end) for index, (first, end) in unit.items()
        }
        for unit in whole
    }


def run(job: Job) -> None:
    settings = {key: value for key, value in job.settings.items() if not key.startswith(_OWN)}
    settings["bootstrap.servers"] = job.bootstrap_servers
    in_transactions = (
        job.guarantee == "exactly_once" and job.settings.get("verify.transactions") != "off"
    )
    if in_transactions:
        with TransactionalProducer({**settings, "transactional.id": job.name}) as producer:
            job.observe("fence")
            producer.init_transactions()
            with closing(_Input(job)) as source:
                _relay(source, lambda batch: _transaction(job, producer, source, batch))
        return
    orders = {
        "exactly_once": _data_first,  # the control: it only claims to
        "at_least_once": _data_first,
        "at_most_once": _progress_first,
        "none": _nobody_waits,
    }
    order = orders[job.guarantee]
    if job.settings.get("verify.guarantee") != "unchecked":
        settings["guarantee"] = job.guarantee
    with (
        Producer(settings) as plain,
        closing(_Input(job)) as source,
    ):
        job.observe("fence")
        _relay(source, lambda batch: order(job, plain, source, batch))
        plain.flush()


def _relay(source: _Input, write: Callable[[list[Message]], None]) -> None:
    while batch := source.next_batch():
        write(batch)


def _transaction(
    job: Job, producer: TransactionalProducer, source: _Input, batch: list[Message]
) -> None:
    outside = job.settings.get("verify.offsets") == "outside"
    while True:
        try:
            producer.begin_transaction()
            job.observe("open")
            _produce(job, producer, batch)
            producer.flush()
            job.observe("produce:last")
            if not outside:
                producer.send_offsets_to_transaction(source.offsets(), job.name)
                job.observe("offsets")
            job.observe("end")
            _commit(producer)
            job.observe("end:answered")
            break
        except (AbortableError, Unreachable):
            producer.abort_transaction()
    if outside:
        source.commit()


def _commit(producer: TransactionalProducer) -> None:
    for left in reversed(range(_DECISIONS_MAX)):
        try:
            return producer.commit_transaction()
        except OutcomeUnknown:
            if not left:
                raise


def _data_first(job: Job, producer: Producer, source: _Input, batch: list[Message]) -> None:
    _produce(job, producer, batch)
    producer.flush()
    job.observe("produce:last")
    job.observe("offsets")
    source.commit()
    job.observe("end:answered")


def _progress_first(job: Job, producer: Producer, source: _Input, batch: list[Message]) -> None:
    source.commit()
    job.observe("offsets")
    _produce(job, producer, batch)
    producer.flush()
    job.observe("produce:last")


def _nobody_waits(job: Job, producer: Producer, source: _Input, batch: list[Message]) -> None:
    _produce(job, producer, batch)
    job.observe("produce:last")


def _produce(job: Job, producer: Producer, batch: list[Message]) -> None:
    half = len(batch) // 2
    # Where records may be lost, one that is does not stop the others.
    on_delivery = _pass_over if job.guarantee in ("none", "at_most_once") else None
    for number, message in enumerate(batch):
        producer.produce(
            job.output_topic, message.value(), key=message.key(), on_delivery=on_delivery
        )
        if number == half:
            if job.guarantee != "none":
                producer.flush()  # a part of the batch is in the log
            job.observe("produce:first")


def _pass_over(error: BrokerError | None, delivery: Delivery) -> None:
    """Neither sent again nor a reason to stop."""


class _Input:
    """The input topic from the committed offsets to the end that it has now."""

    def __init__(self, job: Job) -> None:
        by_clock = job.guarantee == "none"
        self._job = job
        self._plan = Path(job.folder, _PLAN)
        self._consumer = Consumer(
            {
                "bootstrap.servers": job.bootstrap_servers,
                "group.id": job.name,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": by_clock,
                # Slow, so that a crash finds records written and progress not yet noted.
                "auto.commit.interval.ms": 60_000,
                "log_level": 2,
            }
        )
        topic = job.input_topic
        found = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        asked = [TopicPartition(topic, index) for index in found]
        # Stable ones: after fencing, what the former life committed is decided.
        self._next = {
            part.partition: max(0, part.offset)
            for part in self._consumer.committed(asked, timeout=30)
        }
        self._end = {
            part.partition: self._consumer.get_watermark_offsets(part, timeout=30)[1]
            for part in asked
        }
        self._consumer.assign(
            [TopicPartition(topic, index, offset) for index, offset in self._next.items()]
        )

    def next_batch(self) -> list[Message]:
        """Empty at the end."""
        batch: list[Message] = []
        before = dict(self._next)
        while len(batch) < self._job.per_batch and self._is_behind():
            for message in self._consumer.consume(self._job.per_batch - len(batch), _POLL_S):
                # Errors here are lost connections; the consumer mends them by itself.
                partition, offset = message.partition(), message.offset()
                if message.error() is None and partition is not None and offset is not None:
                    batch.append(message)
                    self._next[partition] = offset + 1
        if batch:
            unit = {index: (before[index], end) for index, end in self._next.items()}
            with self._plan.open("a") as plan:
                plan.write(json.dumps(unit) + "\n")
        return batch

    def _is_behind(self) -> bool:
        return any(self._next[partition] < end for partition, end in self._end.items())

    def offsets(self) -> dict[tuple[str, int], int]:
        return {(self._job.input_topic, index): offset for index, offset in self._next.items()}

    def commit(self) -> None:
        self._consumer.commit(
            offsets=[
                TopicPartition(topic, index, at) for (topic, index), at in self.offsets().items()
            ],
            asynchronous=False,
        )

    def close(self) -> None:
        self._consumer.close()
