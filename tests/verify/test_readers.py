"""The witnesses, on a real cluster: each tells of what it is asked, and of nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from parts import a_producer, a_topic
from sparkonce import Producer
from sparkonce.errors import LocalError
from sparkonce.local import LocalKafka
from sparkonce.verify import readers
from sparkonce.verify.history import Markings


@pytest.fixture
def topic(kafka: LocalKafka) -> Iterator[str]:
    with a_topic(kafka, partitions=2) as name:
        yield name


def test_a_decided_transaction_as_all_of_them_see_it(kafka: LocalKafka, topic: str) -> None:
    servers = kafka.bootstrap_servers
    with a_producer(kafka) as producer:
        with producer.transaction():
            for number in range(5):
                producer.produce(topic, f"{number}", key=b"k", partition=number % 2)
            producer.send_offsets_to_transaction({(topic, 0): 3}, "readers-group")
        producer.begin_transaction()
        producer.produce(topic, "aborted", key=b"k", partition=0)
        producer.flush()
        producer.abort_transaction()
        assert readers.left_open(servers, [topic]) == []
        seen = readers.read(servers, [topic])
        assert sorted(each.value or b"" for each in seen) == [b"0", b"1", b"2", b"3", b"4"]
        with_java = readers.read_with_java(kafka, [topic], 5)
        places = {(each.partition, each.offset, each.key, each.value) for each in seen}
        assert {(e.partition, e.offset, e.key, e.value) for e in with_java} == places
        uncommitted = readers.read(servers, [topic], "read_uncommitted")
        assert b"aborted" in {each.value for each in uncommitted}
        assert readers.committed(servers, {"readers-group": topic}) == {
            "readers-group": {0: 3, 1: -1001}
        }
        assert readers.markings(kafka, [topic]) == {topic: Markings(3, 0, 2, 1)}


def test_kafkas_own_consumer_tells_what_is_not_there_from_a_text(
    kafka: LocalKafka, topic: str
) -> None:
    with Producer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
        producer.produce(topic, "without a key", partition=0)
        producer.produce(topic, None, key=b"null", partition=1)
    found = {(each.key, each.value) for each in readers.read_with_java(kafka, [topic], 2)}
    assert found == {(None, b"without a key"), (b"null", None)}


def test_an_open_transaction_is_noticed(kafka: LocalKafka, topic: str) -> None:
    servers = kafka.bootstrap_servers
    with a_producer(kafka) as producer:
        producer.begin_transaction()
        producer.produce(topic, "open", partition=1)
        producer.flush()
        assert readers.left_open(servers, [topic], timeout_s=0.5) == [(topic, 1)]
        assert readers.read(servers, [topic]) == []
        assert readers.ends(servers, [topic]) == {(topic, 0): 0, (topic, 1): 1}
        assert readers.transaction_state(servers, producer.identity.transactional_id) == "Ongoing"
        who = producer.identity.transactional_id
        producer.commit_transaction()
        assert readers.left_open(servers, [topic]) == []
        readers.await_decisions(servers, [who])
        assert readers.transaction_state(servers, who) == "CompleteCommit"


def test_batches_without_the_transactional_bit_are_counted(kafka: LocalKafka, topic: str) -> None:
    with Producer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
        producer.produce(topic, "plain", partition=0)
        producer.flush()
    assert readers.markings(kafka, [topic]) == {topic: Markings(0, 1, 0, 0)}


def test_a_log_that_the_tool_can_t_read_is_told_and_not_taken_for_empty(
    kafka: LocalKafka, topic: str
) -> None:
    odd = kafka.folder / "broker-1" / "data" / f"{topic}-9"
    (odd / "00000000000000000000.log").mkdir(parents=True)
    try:
        with pytest.raises(LocalError, match="DumpLogSegments ended with"):
            readers.markings(kafka, [topic])
    finally:
        shutil.rmtree(odd)


def test_a_topic_that_is_being_deleted_does_not_disturb(
    kafka: LocalKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka deletes a topic's folders a minute later, at any moment."""
    list_folder = os.scandir

    def gone(folder: Path) -> object:
        if Path(folder).name == f"{going}-0":
            raise FileNotFoundError(folder)
        return list_folder(folder)

    with a_topic(kafka, partitions=1) as going, monkeypatch.context() as patch:
        patch.setattr(os, "scandir", gone)
        with pytest.raises(FileNotFoundError):
            list(kafka.folder.glob("**/*.log"))
        assert readers.markings(kafka, [topic]) == {topic: Markings(0, 0, 0, 0)}


def test_the_watcher_sees_what_comes(kafka: LocalKafka, topic: str) -> None:
    with readers.Watcher(kafka.bootstrap_servers, [topic]) as watcher, a_producer(kafka) as ours:
        with ours.transaction():
            ours.produce(topic, "seen", partition=0)
        while not watcher.seen:
            pass  # the test's own time-out is the limit
        assert [(each.topic, each.value) for each in watcher.seen] == [(topic, b"seen")]


def test_an_id_that_the_coordinator_does_not_know(kafka: LocalKafka) -> None:
    assert readers.transaction_state(kafka.bootstrap_servers, "nobody") == ""
