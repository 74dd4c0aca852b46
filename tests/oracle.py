"""What is really in Kafka, as another client sees it: confluent-kafka, never our own code."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec


class Seen(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    timestamp_ms: int


def read(
    servers: str, topic: str, isolation: str = "read_committed", *, while_open: bool = False
) -> list[Seen]:
    """Every record up to the end as this isolation level sees it, in order per partition.

    A decision is visible when its markers are written, a moment after the coordinator's answer:
    read_committed waits for that, unless a transaction is meant to be open.
    """
    if isolation == "read_committed" and not while_open:
        settle(servers, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "oracle",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        seen: list[Seen] = []
        ended: set[int] = set()
        while len(ended) < len(partitions):
            for message in consumer.consume(5000, 0.05):
                if message.error() is None:
                    seen.append(
                        Seen(
                            message.partition(),
                            message.offset(),
                            message.key(),
                            message.value(),
                            message.headers(),
                            message.timestamp()[1],
                        )
                    )
                elif message.error().name() == "_PARTITION_EOF":
                    ended.add(message.partition())
                elif message.error().fatal():
                    raise RuntimeError(str(message.error()))
        return seen
    finally:
        consumer.close()


def values(
    servers: str, topic: str, isolation: str = "read_committed", *, while_open: bool = False
) -> list[bytes | None]:
    return [seen.value for seen in read(servers, topic, isolation, while_open=while_open)]


def settle(servers: str, topic: str, timeout_s: float = 30.0) -> None:
    """Wait until no transaction is open in the topic; one that stays open is a failure."""
    deadline_s = time.monotonic() + timeout_s
    while left := hanging(servers, topic):
        assert time.monotonic() < deadline_s, f"a transaction was left open in partitions {left}"


def hanging(servers: str, topic: str) -> list[int]:
    """Partitions whose last stable offset is behind their end: a transaction is open there."""
    admin = AdminClient({"bootstrap.servers": servers})
    indexes = admin.list_topics(topic, timeout=30).topics[topic].partitions
    asked = {TopicPartition(topic, index): OffsetSpec.latest() for index in indexes}
    ends = {}
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        answers = admin.list_offsets(asked, isolation_level=level)
        try:
            ends[level] = {part.partition: got.result().offset for part, got in answers.items()}
        except KafkaException as error:
            if error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION:
                return list(indexes)  # a new topic whose leader is not ready: not settled yet
            raise
    stable, end = ends.values()
    return [index for index in indexes if stable[index] != end[index]]


def committed_offset(servers: str, group: str, topic: str, partition: int) -> int:
    """Without the metadata, of which confluent-kafka 2.16 can only show short ones."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        (got,) = consumer.committed([TopicPartition(topic, partition)], timeout=30)
        return got.offset
    finally:
        consumer.close()


def committed(servers: str, group: str, topic: str, partition: int = 0) -> tuple[int, str]:
    """A group's offset and its metadata, once no transaction on it is open."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        (got,) = consumer.committed([TopicPartition(topic, partition)], timeout=30)
        return got.offset, got.metadata or ""
    finally:
        consumer.close()


class Watcher:
    """A `read_committed` reader that runs while things go wrong, and remembers all it saw."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.seen: list[tuple[int, int, bytes]] = []

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "watcher",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            partitions = (
                consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
            )
            consumer.assign([TopicPartition(self._topic, index, 0) for index in partitions])
            while not self._stopping.is_set():
                for message in consumer.consume(1000, 0.1):
                    # An error here is a broker that is down: the reader goes on by itself.
                    if message.error() is None:
                        self.seen.append((message.partition(), message.offset(), message.value()))
        except BaseException as error:  # noqa: BLE001 - raised where the watcher is left
            self._failure = error
        finally:
            consumer.close()
