"""Where a broker listens."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """`host:port,[::1]:port` as in bootstrap.servers."""
    addresses = tuple(_parse(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("must name at least one host:port")
    return addresses


def _parse(text: str) -> Address:
    # librdkafka and Java both allow a listener's name in front.
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not host:port")
    return Address(host.strip("[]"), int(port))
