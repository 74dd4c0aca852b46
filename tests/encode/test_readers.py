"""What the encoder writes, a real broker takes, and librdkafka and Kafka's own Java reader read.

The batches go out by a bare Produce request: no producer of ours stands between.
"""

from __future__ import annotations

import base64
import itertools
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing

import confluent_kafka
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from sparkonce.encode import Codec, EncodedBatch, Encoder, Partitioner, seal
from sparkonce.local import LocalKafka

Headers = list[tuple[str, bytes | None]]
Read = tuple[int, int, bytes | None, bytes | None, Headers]  # partition, time, key, value, headers

NOW_MS = 1_700_000_000_123
PARTITIONS = 5
_PRODUCE_VERSION = 8  # the last one that names topics and has no tagged fields
_NOT_LEADER = 6
_names = itertools.count()


@pytest.fixture
def topic(kafka: LocalKafka) -> str:
    name = f"encode-{next(_names)}"
    kafka.create_topic(name, PARTITIONS)
    return name


def make_table(rng: random.Random, count: int) -> pa.Table:
    """Keys, values and header values are text, so that the console consumer can print them."""

    def text(most: int) -> bytes:
        noise = base64.b64encode(rng.randbytes(rng.randrange(1, most)))
        return noise + b"compressible" * (len(noise) // 12)

    def maybe(value: object) -> object:
        return None if rng.random() < 0.1 else value

    headers = [
        [{"key": f"h{at}", "value": text(9)} for at in range(rng.randrange(3))]
        for _ in range(count)
    ]
    return pa.table({
        "key": pa.array([maybe(text(40)) for _ in range(count)], pa.binary()),
        "value": pa.array([maybe(text(900)) for _ in range(count)], pa.binary()),
        "headers": pa.array(
            headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        ),
        "timestamp": pa.array([maybe(NOW_MS - rng.randrange(10**7)) for _ in range(count)]),
    })  # fmt: skip


def batches_of(table: pa.Table, topic: str, codec: Codec) -> list[EncodedBatch]:
    turn = itertools.count()
    encoder = Encoder(
        codec=codec,
        partitioner=Partitioner(16_384, lambda count: next(turn) % count),
        batch_bytes_max=200_000,
        record_bytes_max=1_000_000,
        chunk_bytes=1_000_000,
    )
    chunks = list(
        encoder.encode(table, topic=topic, partition_counts={topic: PARTITIONS}, now_ms=NOW_MS)
    )
    assert not any(rejected for _, rejected in chunks)
    return [batch for batches, _ in chunks for batch in batches]


def send(bootstrap: str, batches: list[EncodedBatch]) -> None:
    host, port = bootstrap.rsplit(":", 1)
    with closing(socket.create_connection((host, int(port)), timeout=30)) as connection:
        for batch in batches:
            # A broker may know a new topic a moment before it takes up its leadership.
            deadline_s = time.monotonic() + 30
            while (code := _produce(connection, batch)) == _NOT_LEADER:
                assert time.monotonic() < deadline_s, "the broker never became the leader"
            assert code == 0, f"error {code} for {batch}"


def _produce(connection: socket.socket, batch: EncodedBatch) -> int:
    header = seal(batch, producer_id=-1, epoch=-1, sequence=-1, transactional=False)
    data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        version=_PRODUCE_VERSION,
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            data(
                version=_PRODUCE_VERSION,
                name=batch.topic,
                partition_data=[
                    data.PartitionProduceData(
                        version=_PRODUCE_VERSION,
                        index=batch.partition,
                        records=header + bytes(batch.records),
                    )
                ],
            )
        ],
    )
    request.with_header(correlation_id=1, client_id="readers")
    connection.sendall(request.encode(framed=True, header=True))
    (size,) = struct.unpack(">i", _receive(connection, 4))
    response = ProduceResponse.decode(
        _receive(connection, size), version=_PRODUCE_VERSION, header=True
    )
    [answer] = response.responses[0].partition_responses
    return int(answer.error_code)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        assert piece, "the broker closed the connection"
        received += piece
    return received


def expected_of(table: pa.Table, batches: list[EncodedBatch]) -> list[list[Read]]:
    """By partition, what must be read, in order."""
    rows = table.to_pylist()
    partitions: list[list[Read]] = [[] for _ in range(PARTITIONS)]
    for batch in batches:
        for at in batch.rows:
            row = rows[at]
            time = NOW_MS if row["timestamp"] is None else row["timestamp"]
            headers = [(header["key"], header["value"]) for header in row["headers"]]
            read = (batch.partition, time, row["key"], row["value"], headers)
            partitions[batch.partition].append(read)
    return partitions


def read_by_librdkafka(kafka: LocalKafka, topic: str, count: int) -> Iterator[Read]:
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "readers",
        "enable.auto.commit": False,
        "check.crcs": True,
    })  # fmt: skip
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(topic, at, 0) for at in range(PARTITIONS)])
        for _ in range(count):
            message = consumer.poll(30)
            assert message is not None, "librdkafka read fewer records than were written"
            assert message.error() is None, message.error()
            headers = message.headers() or []
            yield (message.partition(), message.timestamp()[1], message.key(), message.value(),
                   headers)  # fmt: skip


def read_by_java(kafka: LocalKafka, topic: str, count: int) -> Iterator[Read]:
    shown = ("timestamp", "partition", "headers", "key", "value")
    properties = [f"--formatter-property=print.{name}=true" for name in shown]
    separators = {"key.separator": "|", "headers.separator": ",", "null.literal": "-"}
    properties += [f"--formatter-property={name}={value}" for name, value in separators.items()]
    done = kafka.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--from-beginning",
        "--max-messages", str(count), "--timeout-ms", "30000", *properties,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        time, partition, headers, key, value = line.split("|")
        parsed = [] if headers == "NO_HEADERS" else headers.removeprefix("Headers:").split(",")
        yield (
            int(partition.removeprefix("Partition:")), int(time.removeprefix("CreateTime:")),
            None if key == "-" else key.encode(), None if value == "-" else value.encode(),
            [(name, text.encode()) for name, text in (pair.split(":") for pair in parsed)],
        )  # fmt: skip


def by_partition(records: Iterator[Read]) -> list[list[Read]]:
    partitions: list[list[Read]] = [[] for _ in range(PARTITIONS)]
    for record in records:
        partitions[record[0]].append(record)
    return partitions


@pytest.mark.parametrize("codec", list(Codec))
def test_both_readers_read_what_was_encoded(
    kafka: LocalKafka, topic: str, codec: Codec, rng: random.Random
) -> None:
    table = make_table(rng, 3000)
    batches = batches_of(table, topic, codec)
    assert {batch.codec for batch in batches} == {codec}
    lengths = [len(value or b"") for value in table["value"].to_pylist()]
    longest = max(sum(lengths[row] for row in batch.rows) for batch in batches)
    assert longest > 2 * 64 * 1024, "no batch of several compressed blocks"
    send(kafka.bootstrap_servers, batches)
    expected = expected_of(table, batches)
    assert by_partition(read_by_librdkafka(kafka, topic, len(table))) == expected
    assert by_partition(read_by_java(kafka, topic, len(table))) == expected


def test_keys_lie_where_java_and_librdkafka_put_them(
    kafka: LocalKafka, topic: str, rng: random.Random
) -> None:
    keys = [rng.randbytes(rng.randrange(1, 60)) for _ in range(2000)]
    table = pa.table({"key": keys, "value": [b"v"] * len(keys)})
    ours = {
        bytes(keys[row]): batch.partition
        for batch in batches_of(table, topic, Codec.NONE)
        for row in batch.rows
    }
    theirs: dict[bytes, int] = {}

    def remember(error: object, message: confluent_kafka.Message) -> None:
        assert error is None
        theirs[message.key()] = message.partition()

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for key in keys:
        producer.produce(topic, value=b"v", key=key, on_delivery=remember)
    assert producer.flush(30) == 0
    assert ours == theirs


_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
_bytes = st.none() | st.binary(max_size=200)
_row = st.fixed_dictionaries({
    "key": _bytes,
    "value": _bytes,
    "headers": st.lists(st.fixed_dictionaries({"key": _text, "value": _bytes}), max_size=3),
    "timestamp": st.none() | st.integers(0, NOW_MS),
})  # fmt: skip


def test_any_bytes_come_back_from_librdkafka(kafka: LocalKafka, topic: str) -> None:
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "any", "check.crcs": True}
    )
    with closing(reader):
        reader.assign([confluent_kafka.TopicPartition(topic, at, 0) for at in range(PARTITIONS)])

        @settings(max_examples=60, deadline=None)
        @given(rows=st.lists(_row, min_size=1, max_size=30), codec=st.sampled_from(list(Codec)))
        def check(rows: list[dict[str, object]], codec: Codec) -> None:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            columns = {
                "key": pa.array([row["key"] for row in rows], pa.binary()),
                "value": pa.array([row["value"] for row in rows], pa.binary()),
                "headers": pa.array([row["headers"] for row in rows], kind),
                "timestamp": pa.array([row["timestamp"] for row in rows], pa.int64()),
            }
            table = pa.table(columns)
            batches = batches_of(table, topic, codec)
            send(kafka.bootstrap_servers, batches)
            messages = [reader.poll(30) for _ in rows]
            assert all(message is not None and message.error() is None for message in messages)
            read = (
                (m.partition(), m.timestamp()[1], m.key(), m.value(), m.headers() or [])
                for m in messages
            )
            assert by_partition(read) == expected_of(table, batches)

        check()
