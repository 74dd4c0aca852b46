"""How the pipelines without Spark read: batch by batch, from where their group has come to."""

from __future__ import annotations

import json
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sparkonce.verify.contract import Job, Unit

_POLL_S = 0.2
_COORDINATOR_TIMEOUT_S = 30.0
_MOVING = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE)
_PLAN = "transactions.jsonl"


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


class Input:
    """The input topic from the committed offsets to the end that it has now."""

    def __init__(self, job: Job) -> None:
        by_clock = job.guarantee == "none"
        self._job = job
        self._plan = Path(job.folder, _PLAN)
        self._consumer = Consumer(
            {
                "bootstrap.servers": job.bootstrap_servers,
                "group.id": job.name,
                "isolation.level": job.settings.get("verify.isolation", "read_committed"),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": by_clock,
                # Slow, so that a crash finds records written and progress not yet noted.
                "auto.commit.interval.ms": 60_000,
                # Where transactions end, an end of the log is behind the last record.
                "enable.partition.eof": True,
                "log_level": 2,
            }
        )
        topic = job.input_topic
        found = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        asked = [TopicPartition(topic, index) for index in found]
        # Stable ones: after fencing, what the former life committed is decided.
        self._next = {
            part.partition: max(0, part.offset) for part in _committed(self._consumer, asked)
        }
        self._unfinished: set[int | None] = set(found)
        self._consumer.assign(
            [TopicPartition(topic, index, offset) for index, offset in self._next.items()]
        )

    def next_batch(self) -> list[Message]:
        """Empty at the end."""
        batch: list[Message] = []
        before = dict(self._next)
        while len(batch) < self._job.per_batch and self._unfinished:
            for message in self._consumer.consume(self._job.per_batch - len(batch), _POLL_S):
                partition, offset, error = message.partition(), message.offset(), message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    self._unfinished.discard(partition)
                # Other errors here are lost connections; the consumer mends them by itself.
                if error is None and partition is not None and offset is not None:
                    batch.append(message)
                    self._next[partition] = offset + 1
        if batch:
            unit = {index: (before[index], end) for index, end in self._next.items()}
            with self._plan.open("a") as plan:
                plan.write(json.dumps(unit) + "\n")
        return batch

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


def _committed(consumer: Consumer, asked: list[TopicPartition]) -> list[TopicPartition]:
    """Asked again while the group's coordinator moves from a broker that was lost to another."""
    deadline_s = time.monotonic() + _COORDINATOR_TIMEOUT_S
    while True:
        try:
            return consumer.committed(asked, timeout=30)
        except KafkaException as error:
            if error.args[0].code() not in _MOVING or time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
