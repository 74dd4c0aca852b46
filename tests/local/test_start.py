"""Starts that succeed on old data, and starts that fail with a reason."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import sparkonce
from sparkonce.errors import DeliveryFailed, LocalError
from sparkonce.local import LocalKafka
from sparkonce.local.broker import explain_death
from sparkonce.local.properties import Layout, Node, server_properties


def test_a_folder_keeps_its_data_and_its_transaction_version(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with LocalKafka(data_dir=folder, transaction_version=1) as kafka:
        assert kafka.finalized_features().get("transaction.version") == 1
        kafka.create_topic("diary")
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce("diary", "dear")
        assert producer.flush(30) == 0
        first_servers = kafka.bootstrap_servers
    with LocalKafka(data_dir=folder, transaction_version=1) as kafka:
        assert kafka.bootstrap_servers != first_servers
        assert kafka.finalized_features().get("transaction.version") == 1
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader"})
        consumer.assign([TopicPartition("diary", 0, 0)])
        message = consumer.poll(30)
        assert message is not None and message.value() == b"dear"
        consumer.close()
    with pytest.raises(LocalError, match=r"made for a cluster with brokers=1.*brokers=3"):
        LocalKafka(3, data_dir=folder, transaction_version=1).start()
    with pytest.raises(LocalError, match=r"transaction_version=1.*transaction_version=2"):
        LocalKafka(data_dir=folder).start()


def test_a_folder_made_by_example_is_as_kafkas_tool_makes_it(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    """With its metadata elsewhere the tool makes it; there is an example since `kafka` ran."""
    features, ids = [], []
    elsewhere = {"metadata.log.dir": str(tmp_path / "metadata")}
    for name, properties in (("by example", {}), ("by the tool", elsewhere)):
        with LocalKafka(data_dir=tmp_path / name, properties=properties) as cluster:
            features.append(cluster.finalized_features())
            settings = str(cluster.folder / "broker-1" / "server.properties")
            told = cluster.run_tool("kafka.tools.StorageTool", "info", "--config", settings)
            assert told.returncode == 0, told.stdout
            assert "Found problem" not in told.stdout
            ids += re.findall(r"(?:cluster|directory)\.id=([\w-]{22})\b", told.stdout)
    assert features[0] == features[1]
    assert len(ids) == len(set(ids)) >= 4, ids


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(LocalError, match=r"isn't empty.*thesis\.txt"):
        LocalKafka(data_dir=tmp_path).start()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match=r"can't be prepared.*data_dir"):
        LocalKafka(data_dir=tmp_path / "file" / "folder").start()


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = occupant.getsockname()[1]
        with pytest.raises(LocalError, match=f"Port {port} .* is taken"):
            LocalKafka(port=port).start()


def test_a_broker_that_dies_at_start_shows_its_log() -> None:
    kafka = LocalKafka(properties={"num.io.threads": "none at all"})
    with pytest.raises(LocalError) as raised:
        kafka.start()
    assert "num.io.threads" in str(raised.value)
    assert "none at all" in str(raised.value)
    with pytest.raises(LocalError, match="isn't started"):
        kafka.broker_pid(1)


def test_a_full_disk_is_called_so() -> None:
    reason = f"java.io.IOException: {os.strerror(errno.ENOSPC)}"
    message = explain_death(Node(2, 9092, 9093), reason, Path("broker-2/broker.log"))
    assert "Broker 2 ended because the disk" in message
    assert "pass another data_dir" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_broker_that_fills_its_disk_says_so(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(tmp_path)], check=True)
    try:
        with LocalKafka(data_dir=tmp_path / "kafka") as kafka:
            kafka.create_topic("t")
            settings = {
                "bootstrap.servers": kafka.bootstrap_servers,
                "delivery.timeout.ms": 3000,
                "request.timeout.ms": 2000,
            }
            with sparkonce.Producer(settings) as producer:
                # More than fits; once the broker is gone, so is the acknowledgement.
                with pytest.raises(DeliveryFailed, match=r"not acknowledged|not sent"):
                    for _ in range(20):
                        producer.produce("t", os.urandom(100_000))
                        producer.flush()
                with pytest.raises(LocalError, match=r"the disk that holds .* is full"):
                    kafka.raise_if_broker_died()
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_users_property_wins_over_the_default() -> None:
    node = Node(1, 20_000, 20_001)
    layout = Layout((node,), 512, {"auto.create.topics.enable": "true"})
    lines = server_properties(layout, node, Path("data")).splitlines()
    assert "auto.create.topics.enable=true" in lines
    assert "auto.create.topics.enable=false" not in lines


def test_a_cluster_of_none_is_refused() -> None:
    with pytest.raises(LocalError, match="at least one broker"):
        LocalKafka(brokers=0)
