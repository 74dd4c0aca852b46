"""LocalKafka's verbs, each followed by a question to the cluster itself."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer
from kafka.admin import KafkaAdminClient

from sparkonce.errors import LocalError
from sparkonce.local import LocalKafka


def new_topic(cluster: LocalKafka, partitions: int = 1) -> str:
    name = f"local-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions)
    return name


def write(cluster: LocalKafka, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def read(cluster: LocalKafka, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    messages = [consumer.poll(30) for _ in range(count)]
    consumer.close()
    return [message.value().decode() for message in messages]


def test_one_broker_takes_and_gives_records(kafka: LocalKafka) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, "a", "b")
    assert read(kafka, topic, 2) == ["a", "b"]
    assert kafka.broker_ids == [1]
    assert kafka.bootstrap_servers.startswith("127.0.0.1:")


def test_transaction_version_2_is_the_default(kafka: LocalKafka) -> None:
    assert kafka.finalized_features()["transaction.version"] == 2


def test_a_deleted_topic_is_gone(kafka: LocalKafka) -> None:
    topic = new_topic(kafka)
    kafka.delete_topic(topic)
    with pytest.raises(LocalError, match="UnknownTopicOrPartition"):
        kafka.leader_of(topic, 0)
    with pytest.raises(LocalError, match="delete the topic"):
        kafka.delete_topic(topic)


def test_added_partitions_have_leaders_on_every_broker(kafka3: LocalKafka) -> None:
    topic = new_topic(kafka3, partitions=2)
    kafka3.add_partitions(topic, 5)
    assert all(kafka3.leader_of(topic, each) in kafka3.broker_ids for each in range(5))
    with pytest.raises(LocalError, match="give the topic"):
        kafka3.add_partitions(topic, 3)


def test_a_topic_that_exists_is_not_created_again(kafka: LocalKafka) -> None:
    topic = new_topic(kafka)
    with pytest.raises(LocalError, match="already exists"):
        kafka.create_topic(topic)


def test_a_partition_that_does_not_exist_is_an_error(kafka: LocalKafka) -> None:
    with pytest.raises(LocalError, match="has 1 partitions, so there is no partition 7"):
        kafka.leader_of(new_topic(kafka), 7)


def test_kafkas_own_tools_run(kafka: LocalKafka) -> None:
    topic = new_topic(kafka, partitions=2)
    write(kafka, topic, "a", "b", "c")
    servers = ("--bootstrap-server", kafka.bootstrap_servers)
    said = kafka.run_tool("org.apache.kafka.tools.GetOffsetShell", *servers, "--topic", topic)
    assert said.returncode == 0, said.stderr
    counts = [int(line.rsplit(":", 1)[1]) for line in said.stdout.splitlines()]
    assert sum(counts) == 3


def test_a_tool_gets_its_input(kafka: LocalKafka) -> None:
    topic = new_topic(kafka)
    producer = "org.apache.kafka.tools.ConsoleProducer"
    servers = ("--bootstrap-server", kafka.bootstrap_servers)
    said = kafka.run_tool(producer, *servers, "--topic", topic, input="x\ny\n")
    assert said.returncode == 0, said.stderr
    assert read(kafka, topic, 2) == ["x", "y"]


def test_a_broker_killed_and_started_again_has_its_port_and_its_data(kafka: LocalKafka) -> None:
    topic, servers, pid = new_topic(kafka), kafka.bootstrap_servers, kafka.broker_pid(1)
    write(kafka, topic, "kept")
    kafka.kill_broker(1)
    assert not kafka.is_broker_alive(1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(LocalError, match="No broker of the cluster answers"):
        kafka.leader_of(topic, 0)
    kafka.start_broker(1)
    assert kafka.bootstrap_servers == servers
    assert kafka.broker_pid(1) != pid
    assert read(kafka, topic, 1) == ["kept"]


def test_a_broker_killed_from_outside_is_noticed(kafka: LocalKafka) -> None:
    os.kill(kafka.broker_pid(1), signal.SIGKILL)
    with pytest.raises(LocalError, match="Broker 1 ended on its own"):
        kafka.wait_until_healthy(30)


def test_three_brokers_replicate_three_times(kafka3: LocalKafka) -> None:
    topic = new_topic(kafka3, partitions=3)
    assert {kafka3.leader_of(topic, partition) for partition in range(3)} == {1, 2, 3}
    servers = ("--bootstrap-server", kafka3.bootstrap_servers)
    kafka3.coordinator_of("anybody")  # creates the internal topic of transactions
    said = kafka3.run_tool("org.apache.kafka.tools.TopicCommand", *servers, "--describe")
    described = {
        line.split("\t")[0]: line
        for line in said.stdout.splitlines()
        if "ReplicationFactor" in line
    }
    for name in (topic, "__transaction_state"):
        assert "ReplicationFactor: 3" in described[f"Topic: {name}"]
        assert "min.insync.replicas=2" in described[f"Topic: {name}"]


def test_a_leader_moves_where_it_is_told(kafka3: LocalKafka) -> None:
    topic = new_topic(kafka3)
    for broker in (2, 3, 1):
        kafka3.move_leader(topic, 0, broker)
        assert kafka3.leader_of(topic, 0) == broker
    write(kafka3, topic, "after the moves")
    assert read(kafka3, topic, 1) == ["after the moves"]


def test_a_leader_moves_to_a_broker_that_was_no_replica(kafka3: LocalKafka) -> None:
    name = f"single-{uuid.uuid4().hex[:8]}"
    kafka3.create_topic(name, replication=1)
    write(kafka3, name, "carried over")
    elsewhere = next(each for each in kafka3.broker_ids if each != kafka3.leader_of(name, 0))
    kafka3.move_leader(name, 0, elsewhere)
    assert kafka3.leader_of(name, 0) == elsewhere
    assert read(kafka3, name, 1) == ["carried over"]
    kafka3.delete_topic(name)  # it would not survive a kill, see move_leader


def test_a_killed_leader_is_replaced_and_comes_back(kafka3: LocalKafka) -> None:
    topic = new_topic(kafka3)
    kafka3.move_leader(topic, 0, 2)
    kafka3.kill_broker(2)
    write(kafka3, topic, "without broker 2")
    assert kafka3.leader_of(topic, 0) in (1, 3)
    with pytest.raises(LocalError, match="Broker 2 ended"):
        kafka3.wait_until_healthy(30)
    kafka3.start_broker(2)
    kafka3.wait_until_healthy()
    assert read(kafka3, topic, 1) == ["without broker 2"]


def test_a_paused_broker_loses_its_leadership_and_lives(kafka3: LocalKafka) -> None:
    topic = new_topic(kafka3)
    kafka3.move_leader(topic, 0, 1)
    pid = kafka3.broker_pid(1)
    kafka3.pause_broker(1)
    kafka3.pause_broker(1)  # twice is once
    write(kafka3, topic, "meanwhile")
    assert kafka3.leader_of(topic, 0) in (2, 3)
    kafka3.resume_broker(1)
    kafka3.wait_until_healthy()
    assert kafka3.broker_pid(1) == pid


def test_a_clean_stop_hands_over_at_once(kafka3: LocalKafka) -> None:
    topic = new_topic(kafka3)
    kafka3.move_leader(topic, 0, 3)
    kafka3.stop_broker(3)
    assert kafka3.leader_of(topic, 0) in (1, 2)
    kafka3.start_broker(3)


def test_a_coordinator_is_one_of_the_brokers_and_moves_when_killed(kafka3: LocalKafka) -> None:
    first = kafka3.coordinator_of("somebody")
    assert first in kafka3.broker_ids
    kafka3.stop_broker(first)
    assert kafka3.coordinator_of("somebody") != first


def test_the_controller_is_one_of_the_brokers_and_moves_when_paused(kafka3: LocalKafka) -> None:
    first = kafka3.controller()
    with closing(KafkaAdminClient(bootstrap_servers=kafka3.bootstrap_servers)) as admin:
        (topic,) = admin.describe_metadata_quorum()["topics"]
    assert topic["partitions"][0]["leader_id"] == first
    kafka3.pause_broker(first)
    assert kafka3.controller() != first
    kafka3.resume_broker(first)
    kafka3.wait_until_healthy()


def test_a_broker_that_does_not_exist_is_named(kafka3: LocalKafka) -> None:
    with pytest.raises(LocalError, match=r"no broker 4: this cluster has \[1, 2, 3\]"):
        kafka3.kill_broker(4)
    with pytest.raises(LocalError, match="no broker 4"):
        kafka3.move_leader("any", 0, 4)
