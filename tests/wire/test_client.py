"""A client that is closed leaves nothing open and nobody waiting."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from sparkonce.errors import Unreachable
from sparkonce.local import LocalKafka
from sparkonce.wire.address import Address, parse_addresses
from sparkonce.wire.client import Client, metadata_request
from sparkonce.wire.security import Security

PATIENCE_S = 30


@contextmanager
def a_client(*bootstrap: Address) -> Iterator[Client]:
    client = Client(
        bootstrap,
        client_id="test",
        security=Security(),
        request_timeout_ms=PATIENCE_S * 1000,
        metadata_max_age_ms=300_000,
    )
    with closing(client):
        yield client


def test_a_connection_that_opens_too_late_is_closed(kafka: LocalKafka) -> None:
    (broker,) = parse_addresses(kafka.bootstrap_servers)
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as slow,
        closing(socket.create_connection(broker, PATIENCE_S)) as real,
        a_client(Address(*slow.getsockname())) as client,
    ):
        slow.settimeout(PATIENCE_S)
        asked = threading.Thread(target=_refused, args=(client,))
        asked.start()
        half_open, _ = slow.accept()
        with closing(half_open):
            half_open.settimeout(PATIENCE_S)
            real.sendall(half_open.recv(4096))
            answer = real.recv(65536)
            client.close()
            asked.join()
            half_open.sendall(answer)
            assert half_open.recv(1) == b"", "it was opened for nobody"


def _refused(client: Client) -> None:
    with pytest.raises(Unreachable, match="the client was closed"):
        client.ask_any(metadata_request([]))


def test_a_closed_client_says_so_at_once(kafka: LocalKafka) -> None:
    with a_client(*parse_addresses(kafka.bootstrap_servers)) as client:
        assert client.refreshed().brokers
    _refused(client)
    with pytest.raises(Unreachable, match="the client was closed"):
        client.refreshed()
    with pytest.raises(Unreachable, match="the client was closed"):
        client.do(lambda: None)
    client.close()


def test_what_a_broker_says_of_its_release(kafka: LocalKafka) -> None:
    with a_client(*parse_addresses(kafka.bootstrap_servers)) as client:
        assert client.refreshed().brokers
        assert client.metadata_level == 29, "4.2-IV1 is the level of Kafka 4.2"
