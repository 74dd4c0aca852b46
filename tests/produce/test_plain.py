"""The producer without transactions: what is delivered, how it is told, and what settings mean."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer as OtherProducer

from oracle import read, values
from sparkonce import Delivery, Producer
from sparkonce.errors import BrokerError, ConfigError, DeliveryFailed
from sparkonce.guarantees import Guarantee
from sparkonce.local import LocalKafka
from sparkonce.options import ProducerOptions
from sparkonce.verify import FaultProxy

PATIENCE_S = 30.0
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Told:
    """Delivery reports as they came, and in which thread."""

    def __init__(self) -> None:
        self.reports: list[tuple[BrokerError | None, Delivery]] = []
        self.threads: set[int] = set()

    def __call__(self, error: BrokerError | None, delivery: Delivery) -> None:
        self.threads.add(threading.get_ident())
        self.reports.append((error, delivery))

    def __len__(self) -> int:
        # Empty at first, and so "false": a callback all the same.
        return len(self.reports)


def opened(kafka: LocalKafka, **settings: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": kafka.bootstrap_servers} | named)


def ready(kafka: LocalKafka, topic: str) -> None:
    """Partition 0 has its leader and a first record: what nobody acknowledges can't be lost."""
    with opened(kafka) as producer:
        producer.produce(topic, "ready", partition=0)


def test_each_row_is_told_where_it_lies(kafka: LocalKafka, plain_topic: str) -> None:
    told: dict[bytes, tuple[int, int]] = {}

    def report(value: bytes, error: BrokerError | None, delivery: Delivery) -> None:
        assert error is None
        assert (delivery.topic, delivery.count) == (plain_topic, 1)
        assert value not in told, "told twice"
        told[value] = (delivery.partition, delivery.offset)

    with opened(kafka) as producer:
        for number in range(300):
            value = b"%d" % number
            producer.produce(
                plain_topic,
                value,
                key=value,
                on_delivery=lambda error, delivery, value=value: report(value, error, delivery),
            )
        producer.flush()
        assert len(told) == 300
    seen = {r.value: (r.partition, r.offset) for r in read(kafka.bootstrap_servers, plain_topic)}
    assert told == seen


def test_each_batch_of_a_table_is_told_with_its_rows(kafka: LocalKafka, plain_topic: str) -> None:
    told = Told()
    contents = [b"%d" % number for number in range(5000)]
    table = pa.table({"value": contents, "key": contents})
    with opened(kafka, batch_size=4096) as producer:
        producer.produce_arrow(plain_topic, table, told)
        producer.flush()
    assert told.threads == {threading.get_ident()}, "callbacks run in the caller's thread"
    assert all(error is None for error, _ in told.reports)
    assert sum(delivery.count for _, delivery in told.reports) == len(contents)
    at = {(r.partition, r.offset): r.value for r in read(kafka.bootstrap_servers, plain_topic)}
    assert len(at) == len(contents)
    for _, delivery in told.reports:
        assert len(delivery.rows) == delivery.count
        for place, row in enumerate(delivery.rows):
            assert at[delivery.partition, delivery.offset + place] == contents[int(row)]


def test_a_topic_whose_leaders_are_just_waking_up_gets_everything_in_order(
    kafka: LocalKafka,
) -> None:
    """The first of five batches under way may come too early and the fifth in time.

    A broker takes any sequence number as the first of a producer it does not know yet, so the
    fifth would be the first in the log, and the others out of order for good.
    """
    rows = list(range(5000))
    table = pa.table({"value": [b"%d" % row for row in rows], "partition": [r % 4 for r in rows]})
    for number in range(12):
        told, topic = Told(), f"waking-{number}"
        kafka.create_topic(topic, partitions=4)
        with opened(kafka, batch_size=2048) as producer:
            producer.produce_arrow(topic, table, told)
            producer.flush()
        kafka.delete_topic(topic)
        assert [error for error, _ in told.reports if error] == []
        for partition in range(4):
            lane = [d for _, d in told.reports if d.partition == partition]
            lane.sort(key=lambda delivery: delivery.offset)
            assert [int(row) for d in lane for row in d.rows] == rows[partition::4]


def test_rows_are_sent_without_a_flush_when_they_have_lingered(
    kafka: LocalKafka, plain_topic: str
) -> None:
    told = Told()
    with opened(kafka, linger_ms=20) as producer:
        for number in range(3):
            producer.produce(plain_topic, f"{number}", partition=0, on_delivery=told)
            deadline_s = time.monotonic() + PATIENCE_S
            while len(told) <= number:
                assert time.monotonic() < deadline_s, "it lingers for ever"
                producer.poll(0.1)
        expected = [b"%d" % number for number in range(3)]
        assert values(kafka.bootstrap_servers, plain_topic) == expected


def test_every_part_of_a_record_arrives_as_it_was(kafka: LocalKafka, plain_topic: str) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b"")]
    given: list[dict[str, Any]] = [
        {"value": b"\x00\xff", "key": b"\x80", "timestamp": 1_700_000_000_123, "headers": headers},
        {"value": None, "key": b"deleted", "timestamp": 0, "headers": None},
        {"value": b"", "key": None, "timestamp": 1_600_000_000_000, "headers": headers[:1]},
        {"value": "grüße".encode(), "key": b"", "timestamp": 1, "headers": None},
    ]
    with opened(kafka) as producer:
        for row in given:
            producer.produce(plain_topic, partition=0, **row)
        columns: dict[str, Any] = {name: [row[name] for row in given] for name in given[0]}
        pairs = [
            [{"key": key, "value": value} for key, value in row] if row else None
            for row in columns["headers"]
        ]
        columns |= {
            "headers": pa.array(pairs, _HEADERS),
            "timestamp": pa.array(columns["timestamp"], pa.timestamp("ms")),
            "partition": pa.array([1] * len(given), pa.int32()),
        }
        producer.produce_arrow(plain_topic, pa.table(columns))
    seen = read(kafka.bootstrap_servers, plain_topic)
    for partition in (0, 1):
        lane = [record for record in seen if record.partition == partition]
        for row, record in zip(given, lane, strict=True):
            assert (record.value, record.key) == (row["value"], row["key"])
            assert record.timestamp_ms == row["timestamp"]
            assert record.headers == row["headers"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_another_client(
    kafka: LocalKafka, plain_topic: str, codec: str
) -> None:
    expected = [b"%05d " % number * 20 for number in range(2000)]
    with opened(kafka, compression_type=codec) as producer:
        producer.produce_arrow(
            plain_topic, pa.table({"value": expected, "partition": [0] * len(expected)})
        )
    assert values(kafka.bootstrap_servers, plain_topic) == expected


@pytest.mark.parametrize(("acks", "knows_offsets"), [("0", False), ("1", True), ("all", True)])
def test_acks(kafka: LocalKafka, plain_topic: str, acks: str, knows_offsets: bool) -> None:
    told = Told()
    ready(kafka, plain_topic)
    expected = [b"ready", *(b"%d" % number for number in range(100))]
    with opened(kafka, acks=acks) as producer:
        for value in expected[1:]:
            producer.produce(plain_topic, value, partition=0, on_delivery=told)
    assert len(told) == 100
    assert all(error is None for error, _ in told.reports)
    offsets = [delivery.offset for _, delivery in told.reports]
    assert offsets == (list(range(1, 101)) if knows_offsets else [-1] * 100)
    deadline_s = time.monotonic() + PATIENCE_S
    while values(kafka.bootstrap_servers, plain_topic) != expected:  # acks=0: not at once
        assert time.monotonic() < deadline_s, "they never arrived"


def test_keys_go_where_other_clients_put_them(kafka: LocalKafka, plain_topic: str) -> None:
    keys = [b"k" * (number % 13) + b"%d" % number for number in range(500)] + [b"", b"\xff\x80"]
    other = OtherProducer(
        {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for key in keys:
        other.produce(plain_topic, b"other", key=key)
    assert other.flush(PATIENCE_S) == 0
    with opened(kafka) as producer:
        for key in keys:
            producer.produce(plain_topic, b"row", key=key)
        producer.produce_arrow(plain_topic, pa.table({"key": keys, "value": ["arrow"] * len(keys)}))
    places: dict[bytes, set[int]] = defaultdict(set)
    for record in read(kafka.bootstrap_servers, plain_topic):
        places[record.key or b""].add(record.partition)
    assert len(places) == len(keys)
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len({partition for found in places.values() for partition in found}) == 4


def test_keyless_rows_find_every_partition(kafka: LocalKafka, plain_topic: str) -> None:
    with opened(kafka, batch_size=1024) as producer:
        producer.produce_arrow(plain_topic, pa.table({"value": ["x" * 100] * 2000}))
    assert {r.partition for r in read(kafka.bootstrap_servers, plain_topic)} == {0, 1, 2, 3}


def test_closing_sends_what_is_left_and_lets_go_of_everything(
    kafka: LocalKafka, plain_topic: str
) -> None:
    before = set(threading.enumerate())
    producer = opened(kafka, linger_ms=60_000, request_timeout_ms=30_000)
    producer.produce(plain_topic, "last words")
    producer.close()
    producer.close()
    assert set(threading.enumerate()) <= before, "a thread was left behind"
    assert values(kafka.bootstrap_servers, plain_topic) == [b"last words"]
    with pytest.raises(BrokerError, match="closed: make a new one"):
        producer.produce(plain_topic, "too late")


def test_closing_ends_by_itself_when_the_cluster_is_gone(
    kafka: LocalKafka, plain_topic: str, seed: int
) -> None:
    before = set(threading.enumerate())
    with FaultProxy(kafka.bootstrap_servers, seed=seed) as proxy:
        producer = Producer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "delivery.timeout.ms": 1500,
                "request.timeout.ms": 1000,
                "max.block.ms": 1000,
            }
        )
        producer.produce(plain_topic, "arrives")
        producer.flush()
        proxy.stop_accepting()
        proxy.cut_all()
        producer.produce(plain_topic, "does not")
        with pytest.raises(DeliveryFailed, match=r"delivery\.timeout\.ms=1500"):
            producer.close()
    assert set(threading.enumerate()) <= before, "a thread was left behind"
    assert values(kafka.bootstrap_servers, plain_topic) == [b"arrives"]


def test_a_failure_is_told_to_the_callback_or_raised_by_flush(
    kafka: LocalKafka, plain_topic: str, seed: int
) -> None:
    told = Told()
    with (
        FaultProxy(kafka.bootstrap_servers, seed=seed) as proxy,
        Producer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "delivery.timeout.ms": 1500,
                "request.timeout.ms": 1000,
            }
        ) as producer,
    ):
        producer.produce(plain_topic, "first", partition=0)
        producer.flush()
        proxy.stop_accepting()
        proxy.cut_all()
        producer.produce(plain_topic, "heard of", partition=0, on_delivery=told)
        assert producer.flush(), "the outcome is known"
        ((error, delivery),) = told.reports
        assert isinstance(error, DeliveryFailed)
        assert (delivery.count, delivery.offset) == (1, -1)
        producer.produce(plain_topic, "unheard", partition=0)
        with pytest.raises(DeliveryFailed, match=f"1 records to {plain_topic}-0") as raised:
            producer.flush()
        assert "delivery.timeout.ms=1500" in str(raised.value)
        proxy.accept()
        producer.produce(plain_topic, "second", partition=0)
        assert producer.flush(), "an error told once is not told again"
    assert values(kafka.bootstrap_servers, plain_topic) == [b"first", b"second"]


@pytest.mark.parametrize(
    ("guarantee", "idempotent", "acks", "resends"),
    [
        ("none", False, 0, True),
        ("at_most_once", False, -1, False),
        ("at_least_once", True, -1, True),
        ("exactly_once", True, -1, True),
    ],
)
def test_a_guarantee_brings_its_settings(
    kafka: LocalKafka,
    plain_topic: str,
    guarantee: str,
    idempotent: bool,
    acks: int,
    resends: bool,
) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "guarantee": guarantee}
    options = ProducerOptions.parse(settings)
    assert options.guarantee is Guarantee(guarantee)
    assert (options.enable_idempotence, options.acks) == (idempotent, acks)
    assert (options.retries > 0) == resends
    ready(kafka, plain_topic)
    with Producer(settings) as producer:
        producer.produce(plain_topic, "written", partition=0)
    deadline_s = time.monotonic() + PATIENCE_S
    while values(kafka.bootstrap_servers, plain_topic) != [b"ready", b"written"]:
        assert time.monotonic() < deadline_s, "it never arrived"


def test_a_guarantee_that_is_contradicted_is_refused(kafka: LocalKafka) -> None:
    with pytest.raises(ConfigError, match=r"guarantee=at_least_once needs acks=all.*acks=1"):
        opened(kafka, guarantee="at_least_once", acks="1")
