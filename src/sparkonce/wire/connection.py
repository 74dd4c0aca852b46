"""One connection to one broker. Every socket of this package's client is opened and used here.

Opening (TCP, security, ApiVersions) is plain blocking code that runs in a short thread of its
own, so that a host that does not answer delays nobody else; the open connection is then
non-blocking and belongs to the client's loop.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from sparkonce.errors import BrokerError, Unreachable, explain
from sparkonce.wire.address import Address
from sparkonce.wire.request import Buffer, Request, Versions
from sparkonce.wire.security import Security

ANSWER_BYTES_MAX = 100 * 1024 * 1024
_UNSUPPORTED_VERSION = 35
_BUFFERS_PER_SEND = 64
_READ_BYTES = 64 * 1024

Done = Callable[[Any], None]
"""Called once, with the decoded answer or with a BrokerError."""


class NotKafka(Unreachable):
    """Something answered at this address, but it does not speak Kafka's protocol."""


@dataclass(slots=True)
class _Waiting:
    correlation_id: int
    request: Request
    done: Done
    deadline_s: float


class Connection:
    """Frames out in order, answers matched in order: a broker answers as it was asked."""

    def __init__(
        self, sock: socket.socket, address: Address, versions: Versions, client_id: str
    ) -> None:
        self.address = address
        self.versions = versions
        self.broken: BrokerError | None = None
        self._socket = sock
        self._client_id = client_id
        self._next_id = 1
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self._waiting: deque[_Waiting] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def next_deadline_s(self) -> float | None:
        return min((waiting.deadline_s for waiting in self._waiting), default=None)

    def send(self, request: Request, done: Done, deadline_s: float) -> None:
        """Queue a request and send what the socket takes at once."""
        try:
            frame = request.encode(self.versions, self._next_id, self._client_id)
        except BrokerError as error:
            done(error)
            return
        waiting = _Waiting(self._next_id, request, done, deadline_s)
        self._next_id = self._next_id % (2**31 - 1) + 1
        self._out.extend(memoryview(buffer) for buffer in frame)
        if request.expects_answer:
            self._waiting.append(waiting)
        self.write()
        if not request.expects_answer:
            done(self.broken)

    def write(self) -> None:
        """Send until the socket is full; an error breaks the connection."""
        try:
            while self._out:
                sent = self._socket.sendmsg(itertools.islice(self._out, _BUFFERS_PER_SEND))
                while sent:
                    first = self._out[0]
                    if sent < len(first):
                        self._out[0] = first[sent:]
                        break
                    sent -= len(first)
                    self._out.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            self.fail(f"the connection broke while sending: {error}")

    def read(self) -> None:
        """Take what has come and hand whole answers to those who wait for them."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            return self.fail(f"the connection broke while reading: {error}")
        if not data:
            return self.fail("the broker closed the connection")
        self._in += data
        while self.broken is None and len(self._in) >= 4:
            (size,) = struct.unpack_from(">i", self._in)
            if not 0 <= size <= ANSWER_BYTES_MAX:
                return self.fail(f"an answer of {size} bytes was announced, which can't be")
            if len(self._in) < 4 + size:
                return
            frame = bytes(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            return self.fail(f"an answer to request {correlation_id} came out of turn")
        waiting = self._waiting.popleft()
        try:
            answer = waiting.request.decode(memoryview(frame))
        except (ValueError, IndexError, struct.error) as error:
            self._waiting.appendleft(waiting)
            return self.fail(f"an answer to {waiting.request.api} can't be decoded: {error}")
        waiting.done(answer)

    def expire(self, now_s: float) -> None:
        """A request past its time means a broker that is stuck: nothing behind it will come."""
        for waiting in self._waiting:
            if waiting.deadline_s <= now_s:
                return self.fail(f"no answer to {waiting.request.api} in time")

    def fail(self, why: str) -> None:
        """Of no use any more: tell everyone who waits. The loop closes it when it has let go."""
        if self.broken is None:
            self.broken = Unreachable(f"broker {self.address}: {why}")
            self._out.clear()
        while self._waiting:
            self._waiting.popleft().done(self.broken)

    def close(self) -> None:
        self.fail("the client was closed")
        self._socket.close()


def open_connection(
    address: Address, security: Security, client_id: str, timeout_s: float
) -> Connection:
    """Connect, protect, ask for versions; blocking. Raises Unreachable or NotKafka."""
    deadline_s = time.monotonic() + timeout_s
    try:
        plain = socket.create_connection(address, timeout=timeout_s)
    except (OSError, UnicodeError) as error:  # the latter: a name that can't be one of a host
        raise Unreachable(f"{address}: {error}") from error
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock = security.protect(plain, address)
        versions = _ask_versions(sock, address, client_id, deadline_s)
        sock.setblocking(False)
    except OSError as error:
        plain.close()
        raise Unreachable(f"{address}: {error}") from error
    except BaseException:
        plain.close()
        raise
    return Connection(sock, address, versions, client_id)


def _ask_versions(
    sock: socket.socket, address: Address, client_id: str, deadline_s: float
) -> Versions:
    for version in (4, 3):
        request = ApiVersionsRequest(
            version=version, client_software_name="sparkonce", client_software_version="0"
        )
        request.with_header(correlation_id=0, client_id=client_id)
        sock.sendall(request.encode(framed=True, header=True))
        frame = _read_frame(sock, address, deadline_s)
        try:
            # A broker that does not know the version answers in version 0, with 35 first of all.
            if struct.unpack_from(">h", frame, 4)[0] == _UNSUPPORTED_VERSION:
                continue
            answer = ApiVersionsResponse[version].decode(frame, header=True)
        except (ValueError, IndexError, struct.error) as error:
            raise NotKafka(f"{address} answered ApiVersions with something else: {error}") from None
        if answer.error_code:
            raise Unreachable(f"{address}: ApiVersions answered {explain(answer.error_code)}")
        finalized = {feature.name: feature for feature in answer.finalized_features or ()}
        supported = {feature.name: feature for feature in answer.supported_features or ()}
        transaction = finalized.get("transaction.version")
        metadata = supported.get("metadata.version")
        return Versions(
            ranges={api.api_key: (api.min_version, api.max_version) for api in answer.api_keys},
            transaction_version=transaction.max_version_level if transaction else 0,
            features_epoch=answer.finalized_features_epoch,
            metadata_level_max=metadata.max_version if metadata else 0,
        )
    raise BrokerError(f"{address} is older than Apache Kafka 3.0, which is needed", code=35)


def _read_frame(sock: socket.socket, address: Address, deadline_s: float) -> bytes:
    head = _read_exactly(sock, 4, address, deadline_s)
    if head == b"HTTP":
        raise NotKafka(f"{address} speaks HTTP, not Kafka: is the port right?")
    if head[:2] == b"\x15\x03":
        raise NotKafka(
            f"{address} wants TLS, and security.protocol is PLAINTEXT: "
            "use the cluster's plaintext listener, or set security.protocol"
        )
    (size,) = struct.unpack(">i", head)
    if not 4 < size < ANSWER_BYTES_MAX:
        raise NotKafka(f"{address} answered {head!r}, which is not Kafka: is the port right?")
    return _read_exactly(sock, size, address, deadline_s)


def _read_exactly(sock: socket.socket, count: int, address: Address, deadline_s: float) -> bytes:
    data = b""
    while len(data) < count:
        sock.settimeout(max(0.001, deadline_s - time.monotonic()))
        part = sock.recv(count - len(data))
        if not part:
            raise Unreachable(f"{address} closed the connection during the first exchange")
        data += part
    return data


__all__ = ["Buffer", "Connection", "Done", "NotKafka", "open_connection"]
