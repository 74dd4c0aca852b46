"""Requests as bytes, answers as messages: kafka-python's schemas, and one frame laid by hand.

Produce is the exception: its record batches are megabytes that already lie in Arrow buffers, so
its frame is a list of buffers for `sendmsg`, with the batches in it as they are. Through the
schema's encoder every record byte would be copied twice more.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from sparkonce.errors import BrokerError

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Versions:
    """What one broker said of itself in ApiVersions."""

    ranges: Mapping[int, tuple[int, int]]
    transaction_version: int = 0
    features_epoch: int = -1
    metadata_level_max: int = 0
    """Of `metadata.version`, the highest level that the broker supports; each minor release of
    Kafka has a higher one. 0: not told."""

    def pick(self, api: str, key: int, low: int, high: int) -> int:
        """The newest version of `api` both sides speak, within what this client needs."""
        theirs = self.ranges.get(key)
        if theirs is None or theirs[1] < low or theirs[0] > high:
            spoken = f"{theirs[0]} to {theirs[1]}" if theirs else "none"
            raise BrokerError(
                f"the broker speaks {api} in version {spoken}, this client in {low} to {high}: "
                "a broker of Apache Kafka 3.0 or newer is needed",
                code=35,
            )
        return min(high, theirs[1])


class Request(Protocol):
    """Something a connection can send."""

    @property
    def api(self) -> str: ...

    @property
    def expects_answer(self) -> bool: ...

    def encode(self, versions: Versions, correlation_id: int, client_id: str) -> list[Buffer]: ...

    def decode(self, answer: memoryview) -> Any: ...


@dataclass(slots=True)
class Message:
    """A request from kafka-python's schemas; `low` and `high` bound the version."""

    kind: Any
    low: int
    high: int
    fields: dict[str, Any]
    expects_answer: bool = True
    _response: Any = None

    @property
    def api(self) -> str:
        return str(self.kind.__name__).removesuffix("Request")

    def encode(self, versions: Versions, correlation_id: int, client_id: str) -> list[Buffer]:
        version = versions.pick(self.api, self.kind.API_KEY, self.low, self.high)
        message = self.kind(version=version, **self.fields)
        message.with_header(correlation_id=correlation_id, client_id=client_id)
        self._response = message.header.get_response_class()
        return [message.encode(framed=True, header=True)]

    def decode(self, answer: memoryview) -> Any:
        return self._response.decode(answer, header=True)


_PRODUCE_KEY = 0
_PRODUCE_FLEXIBLE = 9


@dataclass(slots=True)
class Produce:
    """Record batches to the leader of their partitions, one batch a partition at most."""

    batches: Sequence[tuple[str, int, tuple[Buffer, ...], int]]
    """(topic, partition, buffers, their length together)"""
    transactional_id: str | None
    acks: int
    timeout_ms: int
    high: int
    """12 adds partitions to the transaction by itself (KIP-890); 11 does not."""
    api: str = field(default="Produce", init=False)
    _version: int = -1

    @property
    def expects_answer(self) -> bool:
        return self.acks != 0

    def encode(self, versions: Versions, correlation_id: int, client_id: str) -> list[Buffer]:
        version = versions.pick(self.api, _PRODUCE_KEY, _PRODUCE_FLEXIBLE, self.high)
        self._version = version
        client = client_id.encode()
        by_topic: dict[str, list[tuple[int, tuple[Buffer, ...], int]]] = {}
        for topic, partition, buffers, length in self.batches:
            by_topic.setdefault(topic, []).append((partition, buffers, length))
        head = bytearray(4)  # the frame's length, known at the end
        head += struct.pack(">hhih", _PRODUCE_KEY, version, correlation_id, len(client))
        head += client + b"\0" + _compact(self.transactional_id)
        head += struct.pack(">hi", self.acks, self.timeout_ms) + uvarint(len(by_topic) + 1)
        frame: list[Buffer] = []
        for topic, partitions in by_topic.items():
            head += _compact(topic) + uvarint(len(partitions) + 1)
            for partition, buffers, length in partitions:
                head += struct.pack(">i", partition) + uvarint(length + 1)
                frame += (head, *buffers)
                head = bytearray(b"\0")
            head += b"\0"
        frame.append(head + b"\0")
        size = sum(map(len, frame)) - 4
        struct.pack_into(">i", frame[0], 0, size)
        return frame

    def decode(self, answer: memoryview) -> Any:
        return ProduceResponse[self._version].decode(answer, header=True)


assert ProduceRequest.API_KEY == _PRODUCE_KEY


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _compact(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return uvarint(len(raw) + 1) + raw
