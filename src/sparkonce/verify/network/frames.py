"""What the fault proxy must understand of Kafka's frames, and nothing more.

A request is known by the first bytes of its frame: which API, which version, whose. Record data is
never looked at. A response is passed on as it is, except for the few that tell a client where the
brokers are: those get the proxy's own addresses, or the client would go past the proxy from then
on. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin.cluster import DescribeClusterResponse
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)
from kafka.protocol.producer.produce import ProduceResponse

Address = tuple[str, int]
Relocate = Callable[[int, Address], Address]
"""Given a broker's node id and its real address, the address that clients are told."""

SIZE_BYTES: Final = 4
CORRELATION_BYTES: Final = 4
# Client id and transactional id have 2-byte lengths, so all that we read lies within this.
PEEK_BYTES: Final = 66_000
# Above Kafka's own limit of 100 MiB for requests. What a TLS client says first would read as a
# frame of 352 MiB: refused, not waited for.
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024

# In these requests the transactional id comes first; from this version on in the compact encoding.
_TRANSACTIONAL_ID_COMPACT_SINCE: Final = {
    ApiKey.Produce: 9,
    ApiKey.InitProducerId: 2,
    ApiKey.AddPartitionsToTxn: 3,
    ApiKey.AddOffsetsToTxn: 3,
    ApiKey.EndTxn: 3,
    ApiKey.TxnOffsetCommit: 3,
}
# From these versions on it doesn't, since they are batched or (KIP-890) between brokers only.
_TRANSACTIONAL_ID_GONE_SINCE: Final = {ApiKey.AddPartitionsToTxn: 4}

# The responses that carry addresses. Produce names new leaders since version 10 (KIP-951).
_REWRITTEN: Final[dict[int, Any]] = {
    ApiKey.ApiVersions: ApiVersionsResponse,
    ApiKey.Metadata: MetadataResponse,
    ApiKey.FindCoordinator: FindCoordinatorResponse,
    ApiKey.DescribeCluster: DescribeClusterResponse,
    ApiKey.Produce: ProduceResponse,
}
_REWRITTEN_SINCE: Final = {ApiKey.Produce: 10}
_MAX_VERSION: Final[dict[int, int]] = {
    **{key: message.max_version for key, message in _REWRITTEN.items()},
    # Version 16 names new leaders too (KIP-951), in frames that are too large to take apart.
    ApiKey.Fetch: 15,
}
# Share groups name new leaders as well, in messages that we have no schema for.
_HIDDEN: Final = frozenset({ApiKey.ShareFetch, ApiKey.ShareAcknowledge})
_UNSUPPORTED_VERSION: Final = 35
_INTO_LAST_RECORD: Final = 8
"""Bytes from the end of a Produce."""


class FrameError(ValueError):
    """Bytes that aren't a Kafka frame in the clear."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The start of a request: enough to decide what happens to it."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    transactional_id: str | None = None
    answered: bool = True  # False: Produce with acks=0, for which the broker never answers

    @property
    def api(self) -> str:
        """The API's name as Kafka spells it, e.g. `EndTxn`."""
        try:
            return str(ApiKey(self.api_key).name)
        except ValueError:
            return f"Api{self.api_key}"


def frame_size(prefix: bytes) -> int:
    """The length that a frame's first four bytes announce."""
    (size,) = struct.unpack(">i", prefix)
    if not CORRELATION_BYTES <= size <= MAX_FRAME_BYTES:
        raise FrameError(
            f"A frame announces {size} bytes, which no Kafka client or broker sends in the clear. "
            "The proxy understands PLAINTEXT and SASL_PLAINTEXT only: point it at such a listener."
        )
    return int(size)


def parse_request(start: bytes) -> RequestHead:
    """Read the head from the start of a request, which follows the frame's length."""
    try:
        return _parse_request(start)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise FrameError(
            f"A request's header can't be read ({error}); its first bytes are {start[:32].hex()}. "
            "Is the client a Kafka client, and is its listener PLAINTEXT or SASL_PLAINTEXT?"
        ) from error


def _parse_request(start: bytes) -> RequestHead:
    key, version, correlation_id = struct.unpack_from(">hhi", start)
    client_id, at = _string(start, 8)
    compact_since = _TRANSACTIONAL_ID_COMPACT_SINCE.get(key)
    if compact_since is None or version >= _TRANSACTIONAL_ID_GONE_SINCE.get(key, version + 1):
        return RequestHead(key, version, correlation_id, client_id)

    transactional_id = None
    if version >= compact_since:
        transactional_id, at = _compact_string(start, _skip_tagged_fields(start, at))
    elif key != ApiKey.Produce or version >= 3:
        transactional_id, at = _string(start, at)
    answered = key != ApiKey.Produce or struct.unpack_from(">h", start, at) != (0,)
    return RequestHead(key, version, correlation_id, client_id, transactional_id, answered)


def refuse_api_versions(head: RequestHead) -> bytes | None:
    """The framed answer to an ApiVersions request that is newer than our schemas, else None.

    A broker that doesn't know the version answers in version 0 and names those that it knows
    (KIP-511); the client asks again with one of them. So do we, in the broker's place.
    """
    newest = _MAX_VERSION[ApiKey.ApiVersions]
    if head.api_key != ApiKey.ApiVersions or head.version <= newest:
        return None
    known = ApiVersionsResponse.ApiVersion(
        api_key=ApiKey.ApiVersions, min_version=0, max_version=newest, version=0
    )
    answer = ApiVersionsResponse(error_code=_UNSUPPORTED_VERSION, api_keys=[known], version=0)
    return _framed(struct.pack(">i", head.correlation_id) + answer.encode(version=0))


def corrupt(produce: bytes) -> bytes:
    """A framed Produce with a bit of its last record flipped, which the batch's checksum covers.

    Behind the records there are at most three bytes, for tagged fields; and the last record ends
    with its headers, or with its value and a zero.
    """
    at = len(produce) - _INTO_LAST_RECORD
    return produce[:at] + bytes([produce[at] ^ 1]) + produce[at + 1 :]


def is_rewritten(head: RequestHead) -> bool:
    """Whether the answer to this request goes through `rewrite_response`."""
    return head.api_key in _REWRITTEN and head.version >= _REWRITTEN_SINCE.get(head.api_key, 0)


def rewrite_response(head: RequestHead, response: bytes, relocate: Relocate) -> bytes:
    """The framed response with the proxy's addresses in it, or with fewer versions on offer."""
    message = _REWRITTEN[head.api_key]
    version = head.version
    header_bytes = CORRELATION_BYTES
    if head.api_key == ApiKey.ApiVersions:
        # Its header never has tagged fields, and an error's body is always version 0 (KIP-511).
        version = 0 if response[header_bytes : header_bytes + 2] != b"\0\0" else version
    elif message.flexible_version_q(version):
        header_bytes = _skip_tagged_fields(response, header_bytes)
    body = message.decode(response[header_bytes:], version=version)

    if head.api_key == ApiKey.ApiVersions:
        body.api_keys = [offer for offer in body.api_keys if _lower(offer)]
    else:
        for broker, node_id in _brokers(head, body):
            broker.host, broker.port = relocate(node_id, (broker.host, broker.port))
    return _framed(response[:header_bytes] + body.encode())


def _lower(offer: Any) -> bool:
    """Lower an offered API to what we can read; False if nothing is left of it."""
    offer.max_version = min(offer.max_version, _MAX_VERSION.get(offer.api_key, offer.max_version))
    return offer.api_key not in _HIDDEN and offer.min_version <= offer.max_version


def _brokers(head: RequestHead, body: Any) -> list[tuple[Any, int]]:
    """The parts of a response that have a host and a port, each with its node id."""
    if head.api_key == ApiKey.Metadata:
        found = [(broker, broker.node_id) for broker in body.brokers]
    elif head.api_key == ApiKey.DescribeCluster:
        found = [(broker, broker.broker_id) for broker in body.brokers]
    elif head.api_key == ApiKey.Produce:
        found = [(broker, broker.node_id) for broker in body.node_endpoints or ()]
    elif head.version >= 4:
        found = [(broker, broker.node_id) for broker in body.coordinators]
    else:
        found = [(body, body.node_id)]
    return [(broker, node_id) for broker, node_id in found if node_id >= 0]  # -1: none found


def _framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def _string(data: bytes, at: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", data, at)
    at += 2
    return (None, at) if length < 0 else (_text(data, at, length), at + length)


def _compact_string(data: bytes, at: int) -> tuple[str | None, int]:
    length, at = _varint(data, at)
    return (None, at) if length == 0 else (_text(data, at, length - 1), at + length - 1)


def _text(data: bytes, at: int, length: int) -> str:
    if at + length > len(data):
        raise IndexError(f"a string of {length} bytes ends after the frame")
    return data[at : at + length].decode()


def _skip_tagged_fields(data: bytes, at: int) -> int:
    count, at = _varint(data, at)
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
