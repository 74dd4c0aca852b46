"""The frame codec against kafka-python's messages, in every version that clients may speak."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kafka.protocol.admin.cluster import DescribeClusterResponse
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from sparkonce.verify.network.frames import (
    FrameError,
    RequestHead,
    corrupt,
    frame_size,
    is_rewritten,
    parse_request,
    refuse_api_versions,
    rewrite_response,
)

REAL = ("broker.example", 9092)
_BATCH_HEAD_BYTES = 61
PROXY = ("127.0.0.1", 40001)


def encoded(message: Any, version: int, client_id: str | None = "somebody") -> bytes:
    message.API_VERSION = version
    message.with_header(correlation_id=77, client_id=client_id)
    return bytes(message.encode(header=True))


def answer(message: Any, version: int, *, flexible: bool) -> bytes:
    header = struct.pack(">i", 77) + (b"\0" if flexible else b"")
    return header + bytes(message.encode(version=version))


def relocate(node_id: int, address: tuple[str, int]) -> tuple[str, int]:
    assert address == REAL
    return PROXY[0], PROXY[1] + node_id


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "payments", "ü" * 200])
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_produce_head(version: int, transactional_id: str | None, acks: int) -> None:
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[]
    )
    head = parse_request(encoded(request, version))
    assert head == RequestHead(0, version, 77, "somebody", transactional_id, acks != 0)
    assert head.api == "Produce"


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("value", [b"", b"a", b"1" * 500])
@pytest.mark.parametrize("headers", [[], [("why", b"because")]])
def test_a_corrupted_produce_has_its_last_batch_refused_alone(
    version: int, value: bytes, headers: list[tuple[str, bytes]]
) -> None:
    partitions = [
        ProduceRequest.TopicProduceData.PartitionProduceData(
            index=index, records=_batch(value, headers)
        )
        for index in range(2)
    ]
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=partitions)
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    frame = encoded(request, version)
    damaged = corrupt(frame)
    assert sum(a != b for a, b in zip(frame, damaged, strict=True)) == 1
    size = len(_batch(value, headers))
    last = frame.rindex(_batch(value, headers))
    head = last + _BATCH_HEAD_BYTES
    assert damaged[:head] == frame[:head], "its numbers, and the other batch, are as they were"
    batch = MemoryRecords(damaged[last : last + size]).next_batch()
    assert batch is not None and not batch.validate_crc()


def _batch(value: bytes, headers: list[tuple[str, bytes]]) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=10_000)
    builder.append(timestamp=1, key=b"k", value=b"first", headers=[])
    builder.append(timestamp=1, key=None, value=value, headers=headers)
    builder.close()
    return bytes(builder.buffer())


@pytest.mark.parametrize(
    ("request_class", "fields"),
    [
        (InitProducerIdRequest, {"transaction_timeout_ms": 1000}),
        (AddOffsetsToTxnRequest, {"group_id": "group"}),
        (EndTxnRequest, {"committed": True}),
    ],
)
def test_transactional_id_of_other_requests(request_class: Any, fields: dict[str, Any]) -> None:
    for version in range(request_class.max_version + 1):
        request = request_class(transactional_id="payments", **fields)
        head = parse_request(encoded(request, version, client_id=None))
        assert (head.client_id, head.transactional_id, head.answered) == (None, "payments", True)


def test_other_requests_are_known_by_their_header_alone() -> None:
    fetch = FetchRequest(max_wait_ms=1, min_bytes=1, max_bytes=1, topics=[])
    assert parse_request(encoded(fetch, 15)).api == "Fetch"
    assert parse_request(struct.pack(">hhih", 999, 1, 2, -1)).api == "Api999"


def test_what_is_not_a_kafka_frame_is_refused() -> None:
    with pytest.raises(FrameError, match="PLAINTEXT"):
        frame_size(b"\x16\x03\x01\x02")  # a TLS client's first bytes
    with pytest.raises(FrameError, match="header can't be read"):
        parse_request(struct.pack(">hhih", 0, 12, 1, 500) + b"short")


@pytest.mark.parametrize("version", range(14))
def test_metadata_is_rewritten_and_keeps_the_rest(version: int) -> None:
    brokers = [
        MetadataResponse.MetadataResponseBroker(
            node_id=node, host=REAL[0], port=REAL[1], rack="r1" if version else None
        )
        for node in (1, 2)
    ]
    head = RequestHead(3, version, 77, None)
    sent = MetadataResponse(brokers=brokers, cluster_id="abc", controller_id=1, topics=[])
    response = answer(sent, version, flexible=version >= 9)
    rewritten = rewrite_response(head, response, relocate)

    assert frame_size(rewritten[:4]) == len(rewritten) - 4
    got = MetadataResponse.decode(rewritten[4:], version=version, header=True)
    assert [(b.node_id, b.host, b.port) for b in got.brokers] == [
        (1, PROXY[0], PROXY[1] + 1),
        (2, PROXY[0], PROXY[1] + 2),
    ]
    assert got.header.correlation_id == 77
    assert rewrite_response(head, response, lambda node, real: real)[4:] == response


@pytest.mark.parametrize("version", range(7))
def test_coordinators_are_rewritten_except_where_there_is_none(version: int) -> None:
    if version < 4:
        found = FindCoordinatorResponse(node_id=2, host=REAL[0], port=REAL[1])
        missing = FindCoordinatorResponse(error_code=15, node_id=-1, host="", port=-1)
    else:
        coordinator = FindCoordinatorResponse.Coordinator
        found = FindCoordinatorResponse(
            coordinators=[coordinator(key="k", node_id=2, host=REAL[0], port=REAL[1])]
        )
        missing = FindCoordinatorResponse(
            coordinators=[coordinator(key="k", error_code=15, node_id=-1, host="", port=-1)]
        )
    head = RequestHead(10, version, 77, None)
    flexible = version >= 3

    rewritten = rewrite_response(head, answer(found, version, flexible=flexible), relocate)
    got = FindCoordinatorResponse.decode(rewritten[4:], version=version, header=True)
    place = got if version < 4 else got.coordinators[0]
    assert (place.host, place.port) == (PROXY[0], PROXY[1] + 2)

    nowhere = answer(missing, version, flexible=flexible)
    assert rewrite_response(head, nowhere, relocate)[4:] == nowhere


@pytest.mark.parametrize("version", range(3))
def test_described_clusters_are_rewritten(version: int) -> None:
    broker = DescribeClusterResponse.DescribeClusterBroker(
        broker_id=1, host=REAL[0], port=REAL[1], rack=None
    )
    sent = DescribeClusterResponse(cluster_id="abc", controller_id=1, brokers=[broker])
    head = RequestHead(60, version, 77, None)
    rewritten = rewrite_response(head, answer(sent, version, flexible=True), relocate)
    got = DescribeClusterResponse.decode(rewritten[4:], version=version, header=True)
    assert [(b.host, b.port) for b in got.brokers] == [(PROXY[0], PROXY[1] + 1)]


@pytest.mark.parametrize("version", range(10, 14))
def test_new_leaders_named_by_produce_are_rewritten(version: int) -> None:
    endpoint = ProduceResponse.NodeEndpoint(node_id=3, host=REAL[0], port=REAL[1], rack=None)
    sent = ProduceResponse(responses=[], node_endpoints=[endpoint])
    head = RequestHead(0, version, 77, None)
    assert is_rewritten(head)
    rewritten = rewrite_response(head, answer(sent, version, flexible=True), relocate)
    got = ProduceResponse.decode(rewritten[4:], version=version, header=True)
    assert [(b.host, b.port) for b in got.node_endpoints] == [(PROXY[0], PROXY[1] + 3)]


def test_only_versions_that_can_be_read_are_offered() -> None:
    offers = [(3, 0, 99), (1, 4, 18), (78, 1, 2), (22, 0, 6), (18, 0, 5)]
    for version in range(5):
        sent = ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, low, high in offers
            ]
        )
        head = RequestHead(18, version, 77, None)
        rewritten = rewrite_response(head, answer(sent, version, flexible=False), relocate)
        got = ApiVersionsResponse.decode(rewritten[4:], version=version, header=True)
        assert [(o.api_key, o.min_version, o.max_version) for o in got.api_keys] == [
            (3, 0, 13),
            (1, 4, 15),
            (22, 0, 6),
            (18, 0, 4),
        ]


def test_api_versions_newer_than_the_schemas_are_refused_in_version_0() -> None:
    assert refuse_api_versions(parse_request(encoded(ApiVersionsRequest(), 4))) is None
    refusal = refuse_api_versions(RequestHead(18, 5, 77, None))
    assert refusal is not None
    got = ApiVersionsResponse.decode(refusal[4:], version=5 - 1, header=True)
    assert (got.header.correlation_id, got.error_code) == (77, 35)
    assert [(o.api_key, o.max_version) for o in got.api_keys] == [(18, 4)]
