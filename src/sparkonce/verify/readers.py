"""What is really in Kafka, as other clients see it: confluent-kafka and Kafka's own Java tools.

Never our own code: it would agree with itself.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError as KafkaPythonError
from kafka.errors import TransactionalIdNotFoundError

from sparkonce.errors import LocalError, SparkonceError
from sparkonce.local import LocalKafka
from sparkonce.produce.identity import Partition
from sparkonce.verify.contract import Record
from sparkonce.verify.history import Markings

_TIMEOUT_S: Final = 30.0
_NULL: Final = "\\N"
"""How Kafka's console consumer is to show what is not there."""


class ReadingFailed(SparkonceError):
    """The cluster could not be read to its end, so nothing is known."""


def read(servers: str, topics: Sequence[str], isolation: str = "read_committed") -> list[Record]:
    """Every record up to the end as this isolation level sees it, in order per partition."""
    # Its end is told by an answer without records, which else takes its time.
    to_the_end = {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
    with closing(_consumer(servers, isolation, to_the_end)) as consumer:
        partitions = _assign_all(consumer, topics)
        seen: list[Record] = []
        ended: set[tuple[str | None, int | None]] = set()
        deadline_s = time.monotonic() + _TIMEOUT_S
        while len(ended) < len(partitions):
            if time.monotonic() > deadline_s:
                raise ReadingFailed(
                    f"{', '.join(topics)} could not be read to the end within {_TIMEOUT_S:g} s: a "
                    "broker is down, or the machine is very busy"
                )
            for message in consumer.consume(5000, 0.05):
                error = message.error()
                if error is None:
                    seen.append(_record(message))
                    deadline_s = time.monotonic() + _TIMEOUT_S
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add((message.topic(), message.partition()))
                elif error.fatal():
                    raise KafkaException(error)
        return seen


def read_with_java(kafka: LocalKafka, topics: Sequence[str], count: int) -> list[Record]:
    """What Kafka's console consumer shows under read_committed, `count` records at most.

    It doesn't tell topics: these are left empty.
    """
    if count == 0:
        return []
    done = kafka.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", kafka.bootstrap_servers,
        "--include", "|".join(re.escape(topic) for topic in topics),
        "--from-beginning",
        "--isolation-level", "read_committed",
        "--max-messages", str(count),
        "--timeout-ms", "15000",
        "--formatter-property", "print.partition=true",
        "--formatter-property", "print.offset=true",
        "--formatter-property", "print.key=true",
        "--formatter-property", f"null.literal={_NULL}",
        timeout_s=90,
    )  # fmt: skip
    seen = []
    for line in done.stdout.splitlines():
        partition, offset, *told = line.split("\t", 3)
        key, value = (None if each == _NULL else each.encode() for each in told)
        index, at = (int(part.rpartition(":")[2]) for part in (partition, offset))
        seen.append(Record("", index, at, key, value))
    return seen


def left_open(
    servers: str, topics: Sequence[str], timeout_s: float = _TIMEOUT_S
) -> list[Partition]:
    """Partitions whose last stable offset stays behind their end, once decisions have settled."""
    deadline_s = time.monotonic() + timeout_s
    while (behind := _behind(servers, topics)) and time.monotonic() < deadline_s:
        time.sleep(0.05)  # between two questions to the cluster
    return behind


def ends(servers: str, topics: Sequence[str]) -> dict[Partition, int]:
    """Log ends, open transactions and all."""
    admin = AdminClient({"bootstrap.servers": servers})
    return _ends(admin, _partitions(admin, topics), IsolationLevel.READ_UNCOMMITTED)


def committed(servers: str, groups: Mapping[str, str]) -> dict[str, dict[int, int]]:
    """The offsets of each group in its topic as they are decided; -1001 where it has none."""
    admin = AdminClient({"bootstrap.servers": servers})
    topics = admin.list_topics(timeout=_TIMEOUT_S).topics
    found: dict[str, dict[int, int]] = {}
    for group, topic in groups.items():
        parts = [TopicPartition(topic, index) for index in topics[topic].partitions]
        # An open transaction's offsets are not waited for: a driver that was killed can't end it.
        asked = [ConsumerGroupTopicPartitions(group, parts)]
        answer = admin.list_consumer_group_offsets(asked, require_stable=False)[group]
        told = answer.result(_TIMEOUT_S).topic_partitions
        found[group] = {part.partition: part.offset for part in told}
    return found


def markings(kafka: LocalKafka, topics: Sequence[str]) -> dict[str, Markings]:
    """What Kafka's own tool says of the log segments of each topic, on any one broker."""
    files: dict[str, Path] = {}
    for topic in topics:
        # Only folders of this topic: others may be deleted while one looks into them.
        segments = kafka.folder.glob(f"broker-*/data/{topic}-[0-9]*/*.log")
        # A replica that was down may be behind; the longest has all.
        for path in sorted(segments, key=_size):
            files[f"{path.parent.name}/{path.name}"] = path
    if not files:
        return {}
    done = kafka.run_tool(
        "kafka.tools.DumpLogSegments",
        "--print-data-log",
        "--files",
        ",".join(str(path) for path in files.values()),
        timeout_s=90,
    )
    # It goes on behind a file that it can't read, and says so on stderr alone.
    if done.returncode or done.stdout.count("Dumping ") < len(files):
        raise LocalError(
            f"Kafka's DumpLogSegments ended with {done.returncode} and showed "
            f"{done.stdout.count('Dumping ')} of {len(files)} files: {done.stderr[-2000:]}"
        )
    found: dict[str, list[int]] = {topic: [0, 0, 0, 0] for topic in topics}
    topic = ""
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            folder = line.rpartition("/")[0].rpartition("/")[2]
            topic = folder.rpartition("-")[0]
        elif line.startswith("baseOffset:") and topic in found:
            if "isControl: true" in line:
                continue  # its record follows
            found[topic][0 if "isTransactional: true" in line else 1] += 1
        elif "endTxnMarker:" in line and topic in found:
            found[topic][2 if "COMMIT" in line else 3] += 1
    return {topic: Markings(*counts) for topic, counts in found.items()}


def transaction_state(servers: str, transactional_id: str) -> str:
    """As the coordinator has it: `Ongoing`, `PrepareCommit`, `CompleteAbort`, …; "" if unknown."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            # A new client each time: an old one goes on asking a coordinator that has moved.
            with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
                found = admin.describe_transactions([transactional_id])[transactional_id]
                return str(found.state.value)
        except TransactionalIdNotFoundError:
            return ""
        except KafkaPythonError:
            # It moves or starts again, or the cluster had no transaction yet.
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def await_decisions(servers: str, transactional_ids: Sequence[str]) -> None:
    """A decision that was taken is visible when its markers are written; until then, wait."""
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        listed = admin.list_transactions(state_filters=["PrepareCommit", "PrepareAbort"])
    deciding = {each.transactional_id for found in listed.values() for each in found}
    deadline_s = time.monotonic() + _TIMEOUT_S
    for each in deciding.intersection(transactional_ids):
        while transaction_state(servers, each).startswith("Prepare"):
            if time.monotonic() > deadline_s:
                raise LocalError(
                    f"the markers of {each} were not written within {_TIMEOUT_S:g} s: has each of "
                    "its partitions a leader?"
                )
            time.sleep(0.02)  # between two questions to the coordinator


def delete_group(servers: str, group: str) -> None:
    """With all that it has committed."""
    admin = AdminClient({"bootstrap.servers": servers})  # to be kept until it has answered
    admin.delete_consumer_groups([group])[group].result(_TIMEOUT_S)


class Watcher:
    """A read_committed reader that runs while things go wrong, and remembers all it was handed."""

    def __init__(self, servers: str, topics: Sequence[str]) -> None:
        self._servers = servers
        self._topics = topics
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sparkonce-watcher", daemon=True)
        self.seen: list[Record] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            with closing(_consumer(self._servers, "read_committed", {})) as consumer:
                _assign_all(consumer, self._topics)
                while not self._stopping.is_set():
                    for message in consumer.consume(1000, 0.1):
                        # An error here is a broker that is down: the reader goes on by itself.
                        if message.error() is None:
                            self.seen.append(_record(message))
        except BaseException as error:  # noqa: BLE001 - raised where the watcher is left
            self._failure = error


def _size(path: Path) -> int:
    return path.stat().st_size


def _consumer(servers: str, isolation: str, settings: Mapping[str, object]) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "sparkonce-verify",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **settings,
        }
    )


def _assign_all(consumer: Consumer, topics: Iterable[str]) -> list[TopicPartition]:
    found = consumer.list_topics(timeout=_TIMEOUT_S).topics
    parts = [TopicPartition(topic, at, 0) for topic in topics for at in found[topic].partitions]
    consumer.assign(parts)
    return parts


def _record(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None  # it was read
    return Record(topic, partition, offset, message.key(), message.value())


def _partitions(admin: AdminClient, topics: Sequence[str]) -> list[TopicPartition]:
    found = admin.list_topics(timeout=_TIMEOUT_S).topics
    return [TopicPartition(topic, at) for topic in topics for at in found[topic].partitions]


def _ends(
    admin: AdminClient, parts: Sequence[TopicPartition], level: IsolationLevel
) -> dict[Partition, int]:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    answers = admin.list_offsets(dict.fromkeys(parts, latest), isolation_level=level)
    return {(part.topic, part.partition): got.result().offset for part, got in answers.items()}


def _behind(servers: str, topics: Sequence[str]) -> list[Partition]:
    admin = AdminClient({"bootstrap.servers": servers})
    parts = _partitions(admin, topics)
    try:
        stable = _ends(admin, parts, IsolationLevel.READ_COMMITTED)
        end = _ends(admin, parts, IsolationLevel.READ_UNCOMMITTED)
    except KafkaException as error:
        if error.args[0].retriable() or error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION:
            return [(part.topic, part.partition) for part in parts]  # no leader yet: not settled
        raise
    return [part for part in end if stable[part] != end[part]]
