"""Addresses at which no Kafka answers: each kind is told apart, within the time allowed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from oracle import values
from sparkonce import Producer, TransactionalProducer
from sparkonce.errors import BrokerError, FatalError, Unreachable
from sparkonce.local import LocalKafka

NOT_KAFKA = {
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP, not Kafka: is the port right"),
    "TLS": (b"\x15\x03\x03\x00\x02\x02\x46", "wants TLS, and security.protocol is PLAINTEXT"),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", "which is not Kafka: is the port right"),
    "a frame that is no answer": (b"\0\0\0\x40" + b"\x7f" * 64, "with something else"),
    "a frame that is too short": (b"\0\0\0\x05hello", "with something else"),
}


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server that says the same to everybody and hangs up; None: it listens in silence."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return  # the test is over
                if answer is None:
                    held.append(client)
                    continue
                with closing(client):
                    client.recv(4096)
                    client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for client in held:
            client.close()


def tried(servers: str, way: str) -> BrokerError:
    """What the first call that needs the cluster says."""
    settings = {
        "bootstrap.servers": servers,
        "max.block.ms": 1500,
        "request.timeout.ms": 1000,
        "delivery.timeout.ms": 2000,
    }
    with pytest.raises(BrokerError) as told:
        if way == "transactional":
            with TransactionalProducer(settings | {"transactional.id": "lost"}) as transactional:
                transactional.init_transactions()
        else:
            with Producer(settings) as plain:
                plain.produce("topic", "value")
    return told.value


@pytest.mark.parametrize("way", ["plain", "transactional"])
@pytest.mark.parametrize("case", NOT_KAFKA)
def test_something_else_listens_there(case: str, way: str) -> None:
    answer, words = NOT_KAFKA[case]
    with answering(answer) as servers:
        error = tried(servers, way)
    assert isinstance(error, FatalError), error
    assert words in str(error)
    assert servers in str(error)


@pytest.mark.parametrize("way", ["plain", "transactional"])
@pytest.mark.parametrize(("answer", "words"), [(b"", "closed"), (None, "timed out")])
def test_nothing_is_answered_there(answer: bytes | None, words: str, way: str) -> None:
    with answering(answer) as servers:
        error = tried(servers, way)
    assert isinstance(error, Unreachable), error
    assert "max.block.ms=1500" in str(error)
    assert words in str(error)
    assert servers in str(error)


@pytest.mark.parametrize("way", ["plain", "transactional"])
def test_nobody_listens_there(way: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        servers = f"127.0.0.1:{server.getsockname()[1]}"
    error = tried(servers, way)
    assert isinstance(error, Unreachable), error
    assert "max.block.ms=1500" in str(error)
    assert "Connection refused" in str(error)
    assert servers in str(error)


def test_one_good_address_among_bad_ones_is_enough(kafka: LocalKafka, plain_topic: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        dead = f"127.0.0.1:{server.getsockname()[1]}"
    with answering(NOT_KAFKA["HTTP"][0]) as http:
        settings = {"bootstrap.servers": f"{dead},{http},{kafka.bootstrap_servers}"}
        with Producer(settings) as plain:
            plain.produce(plain_topic, "found")
        with TransactionalProducer(settings | {"transactional.id": plain_topic}) as transactional:
            transactional.init_transactions()
            with transactional.transaction():
                transactional.produce(plain_topic, "found too")
    assert sorted(values(kafka.bootstrap_servers, plain_topic)) == [b"found", b"found too"]
