"""Clients of three makes stay on the proxy, and the proxy ends as cleanly as it began."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

import oracle
from parts import wait_until
from sparkonce.local import LocalKafka
from sparkonce.verify import Did, FaultProxy, LoseRequest, ProxyError
from sparkonce.verify.network.frames import parse_request, rewrite_response

_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    return f"proxy-{os.getpid()}-{next(_numbers)}"


def producer(proxy: FaultProxy, **settings: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 0}
        | {name.replace("_", "."): value for name, value in settings.items()}
    )


def produce(client: Producer, topic: str, values: list[bytes], partition: int = 0) -> None:
    """Send one after the other, each acknowledged before the next."""
    for value in values:
        client.produce(topic, value, partition=partition)
        assert client.flush(60) == 0


def consume(servers: str, topic: str, count: int) -> list[bytes]:
    settings = {"group.id": f"group-{topic}", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": servers} | settings)
    try:
        consumer.subscribe([topic])
        got = []
        while len(got) < count:
            message = consumer.poll(60)
            assert message is not None and message.error() is None
            got.append(message.value())
        consumer.commit(asynchronous=False)
        return got
    finally:
        consumer.close()


def ports_known_to(client: Any, topic: str | None = None) -> set[int]:
    return {broker.port for broker in client.list_topics(topic, timeout=30).brokers.values()}


def ports_of(servers: str) -> set[int]:
    return {int(server.rpartition(":")[2]) for server in servers.split(",")}


def passed(proxy: FaultProxy, api: str) -> list[int | None]:
    """The brokers to which requests of this API went."""
    return [event.node for event in proxy.log if event.did is Did.PASSED and event.api == api]


def test_librdkafka_produces_and_consumes_through_it(kafka: LocalKafka, topic: str) -> None:
    kafka.create_topic(topic)
    values = [b"%d" % number for number in range(20)]
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        client = producer(proxy)
        produce(client, topic, values)
        assert consume(proxy.bootstrap_servers, topic, 20) == values
        assert ports_known_to(client) == ports_of(proxy.bootstrap_servers)
        for api in ("Produce", "Fetch", "FindCoordinator", "JoinGroup", "OffsetCommit"):
            assert set(passed(proxy, api)) == {1}, api
    assert oracle.values(kafka.bootstrap_servers, topic) == values


def test_all_brokers_are_reached_through_it_from_one(kafka3: LocalKafka, topic: str) -> None:
    kafka3.create_topic(topic, partitions=6)
    first = kafka3.bootstrap_servers.split(",")[0]
    with FaultProxy(first) as proxy:
        client = producer(proxy, batch_num_messages=1)
        for partition in range(6):
            produce(client, topic, [b"a", b"b"], partition)
        assert len(consume(proxy.bootstrap_servers, topic, 12)) == 12
        assert set(passed(proxy, "Produce")) == {1, 2, 3}
        assert len(passed(proxy, "Produce")) >= 12
        assert set(passed(proxy, "Fetch")) == {1, 2, 3}

        admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
        described = {node.port for node in admin.describe_cluster().result(30).nodes}
        assert described == ports_known_to(client)
        assert len(described) == 3
        assert not described & ports_of(kafka3.bootstrap_servers)


def test_a_client_stays_when_leaders_move(kafka3: LocalKafka, topic: str) -> None:
    """A Produce answer names the new leader and its address (KIP-951)."""
    kafka3.create_topic(topic)
    with FaultProxy(kafka3.bootstrap_servers) as proxy:
        client = producer(proxy, batch_num_messages=1)
        for leader in (1, 2, 3):
            kafka3.move_leader(topic, 0, leader)
            produce(client, topic, [b"%d" % leader])
            assert passed(proxy, "Produce")[-1] == leader
        assert len(passed(proxy, "Produce")) >= 3


def test_transactions_through_it(kafka: LocalKafka, topic: str) -> None:
    kafka.create_topic(topic)
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        reader = Consumer({"bootstrap.servers": proxy.bootstrap_servers, "group.id": topic})
        client = producer(proxy, transactional_id=topic)
        client.init_transactions(60)
        for value, end in (
            (b"no", client.abort_transaction),
            (b"yes", client.commit_transaction),
        ):
            client.begin_transaction()
            produce(client, topic, [value])
            client.send_offsets_to_transaction([], reader.consumer_group_metadata(), 60)
            end(60)
        reader.close()
        names = {e.head.transactional_id for e in proxy.log if e.head and e.api == "EndTxn"}
        assert names == {topic}
        assert len(passed(proxy, "EndTxn")) == 2
        assert passed(proxy, "InitProducerId")
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"yes"]


def test_java_clients_through_it(kafka: LocalKafka, topic: str) -> None:
    kafka.create_topic(topic)
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        servers = ("--bootstrap-server", proxy.bootstrap_servers)
        wrote = kafka.run_tool(
            "org.apache.kafka.tools.ConsoleProducer", *servers, "--topic", topic, input="a\nb\nc\n"
        )
        assert wrote.returncode == 0, wrote.stderr
        read = kafka.run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *servers,
            *("--topic", topic, "--from-beginning", "--max-messages", "3"),
        )
        assert read.stdout.split() == ["a", "b", "c"], read.stderr
        assert passed(proxy, "Produce") and passed(proxy, "Fetch")
        offered = [e.head.version for e in proxy.log if e.head and e.api == "Fetch"]
        assert max(offered) == 15


def test_what_is_rewritten_is_otherwise_byte_for_byte_the_brokers(kafka: LocalKafka) -> None:
    """Every version a broker speaks: decoded, encoded again with the same addresses, compared."""
    requests: list[tuple[Any, int]] = [
        (MetadataRequest(topics=None, allow_auto_topic_creation=False), 0),
        (DescribeClusterRequest(), 0),
        (FindCoordinatorRequest(key="k", key_type=1, coordinator_keys=["k", "l"]), 0),
    ]
    host, port = kafka.bootstrap_servers.split(":")
    for request, oldest in requests:
        for version in range(oldest, request.max_version + 1):
            head, answer = ask((host, int(port)), request, version)
            assert rewrite_response(head, answer, lambda node, real: real)[4:] == answer


def test_features_and_versions_survive_the_rewriting(kafka: LocalKafka) -> None:
    host, port = kafka.bootstrap_servers.split(":")
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    for version in range(5):
        head, answer = ask((host, int(port)), request, version)
        rewritten = rewrite_response(head, answer, lambda node, real: real)[4:]
        # Numbers lowered in place and two APIs left out: what follows the list is untouched.
        tail = answer[answer.index(b"transaction.version") :] if version >= 3 else answer[-2:]
        assert rewritten.endswith(tail)


def test_a_client_from_the_future_is_told_which_versions_there_are(kafka: LocalKafka) -> None:
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        (port,) = ports_of(proxy.bootstrap_servers)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            stream = connection.makefile("rwb")
            for version, error in ((99, 35), (4, 0)):
                body = b"\5test\0021\0" if version == 4 else b""
                sent = struct.pack(">hhih", 18, version, version, -1) + b"\0" + body
                stream.write(struct.pack(">i", len(sent)) + sent)
                stream.flush()
                size, correlation_id, code = struct.unpack(">iih", stream.read(10))
                assert (correlation_id, code) == (version, error)
                stream.read(size - 6)


def ask(address: tuple[str, int], request: Any, version: int) -> tuple[Any, bytes]:
    request.API_VERSION = version
    request.with_header(correlation_id=version, client_id="test")
    sent = bytes(request.encode(header=True))
    with socket.create_connection(address) as connection:
        connection.sendall(struct.pack(">i", len(sent)) + sent)
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        return parse_request(sent), stream.read(size)


def test_clients_recover_when_all_is_cut_and_when_nobody_is_accepted(
    kafka: LocalKafka, topic: str
) -> None:
    kafka.create_topic(topic)
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        client = producer(proxy, reconnect_backoff_max_ms=200)
        produce(client, topic, [b"a"])
        proxy.stop_accepting()
        assert proxy.cut_all() >= 1
        client.produce(topic, b"b", partition=0)
        wait_until(lambda: Did.REFUSED in [event.did for event in proxy.log], "refused", 60)
        proxy.accept()
        assert client.flush(60) == 0
    assert oracle.values(kafka.bootstrap_servers, topic) == [b"a", b"b"]


def test_a_broker_that_is_down_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with FaultProxy(address) as proxy:
        (port,) = ports_of(proxy.bootstrap_servers)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(30)
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        assert [event.did for event in proxy.log] == [Did.REFUSED]


def test_a_broker_that_comes_back_is_found_again(kafka3: LocalKafka, topic: str) -> None:
    kafka3.create_topic(topic, replication=1)
    leader = kafka3.leader_of(topic, 0)
    with FaultProxy(kafka3.bootstrap_servers) as proxy:
        client = producer(proxy, reconnect_backoff_max_ms=200)
        produce(client, topic, [b"a"])
        kafka3.kill_broker(leader)
        client.produce(topic, b"b", partition=0)
        refused = (Did.REFUSED, leader)
        wait_until(lambda: refused in [(each.did, each.node) for each in proxy.log], "refused", 60)
        kafka3.start_broker(leader)
        assert client.flush(60) == 0
    assert oracle.values(kafka3.bootstrap_servers, topic) == [b"a", b"b"]


def test_a_fault_that_never_fires_is_an_error() -> None:
    fault = LoseRequest("EndTxn")
    with (
        FaultProxy("127.0.0.1:1", faults=[fault]) as proxy,
        pytest.raises(ProxyError, match="fired 0 times within"),
    ):
        proxy.wait_fired(fault, timeout_s=0.01)


def test_what_goes_wrong_in_the_loop_is_raised_at_the_end(kafka: LocalKafka) -> None:
    with (
        pytest.raises(ProxyError, match="proves nothing") as caught,
        FaultProxy(kafka.bootstrap_servers) as proxy,
    ):
        (port,) = ports_of(proxy.bootstrap_servers)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"\x16\x03\x01\x02\x00 a TLS client's hello")
            wait_until(lambda: Did.CLOSED in [event.did for event in proxy.log], "closed", 60)
    cause = caught.value.__cause__
    assert isinstance(cause, ExceptionGroup)
    assert "PLAINTEXT" in str(cause.exceptions[0])


def test_nothing_is_left_behind(kafka: LocalKafka) -> None:
    def sockets() -> int:
        links = (fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
        return sum(link.name.startswith("socket:") for link in links)

    before = sockets(), threading.active_count()
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        (port,) = ports_of(proxy.bootstrap_servers)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        wait_until(lambda: [e.did for e in proxy.log].count(Did.CONNECTED) == 5, "connected", 60)
    for client in clients:
        client.close()
    assert (sockets(), threading.active_count()) == before
    proxy.stop()  # a second time does nothing
    with pytest.raises(ProxyError, match="isn't running"):
        proxy.cut_all()
