"""Records and batches over a topic's limit: cut to fit, or refused without harm to the others.

Limits are learnt before the first write; what only the broker knows comes back as a batch that
fails alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Producer as OtherProducer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from oracle import read, settle, values
from parts import MESSAGE_BYTES, a_producer
from sparkonce import Delivery, Producer, TransactionalProducer
from sparkonce.errors import (
    AbortableError,
    BrokerError,
    DeliveryFailed,
    EncodeError,
    StateError,
)
from sparkonce.local import LocalKafka


@pytest.fixture
def producer(kafka: LocalKafka) -> Iterator[TransactionalProducer]:
    with a_producer(kafka, max_block_ms=5000, request_timeout_ms=4000) as opened:
        yield opened


def table(**columns: object) -> pa.Table:
    return pa.table(columns)


def numbered(topic: str, value: bytes) -> pa.Table:
    """A fit row before and behind."""
    return table(topic=[topic] * 3, value=[b"first", value, b"last"])


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_are_cut_to_what_the_topic_takes(
    kafka: LocalKafka, small_topic: str, codec: str
) -> None:
    expected = [f"{number:0100}".encode() for number in range(2000)]
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec}
    with Producer(settings) as plain:
        half = len(expected) // 2
        plain.produce_arrow(small_topic, table(value=expected[:half], partition=[0] * half))
        for value in expected[half:]:
            plain.produce(small_topic, value, partition=0)
    assert values(kafka.bootstrap_servers, small_topic) == expected


@pytest.mark.parametrize("way", ["row", "arrow"])
def test_a_record_over_what_the_topic_takes_is_refused(
    kafka: LocalKafka, producer: TransactionalProducer, small_topic: str, way: str
) -> None:
    producer.begin_transaction()
    words = rf"too large: .* over the {MESSAGE_BYTES} that the topic's max\.message\.bytes allows"
    with pytest.raises(EncodeError, match=words):
        if way == "row":
            producer.produce(small_topic, b"x" * 5000)
            producer.flush()
        else:
            producer.produce_arrow(None, numbered(small_topic, b"x" * 5000))
    with pytest.raises(StateError, match="MUST_ABORT"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.produce(small_topic, "kept")
    assert values(kafka.bootstrap_servers, small_topic) == [b"kept"]
    settle(kafka.bootstrap_servers, small_topic)


def lower_limit(kafka: LocalKafka, topic: str) -> None:
    """Lower max.message.bytes, and wait until the broker keeps to it (seen in partition 3)."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    lower = ConfigEntry(
        "max.message.bytes", str(MESSAGE_BYTES), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[lower])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()
    refused: list[str] = []
    other = OtherProducer({"bootstrap.servers": kafka.bootstrap_servers})
    while not refused:
        other.produce(
            topic,
            b"x" * 5000,
            partition=3,
            on_delivery=lambda error, _: refused.append(error.name()) if error else None,
        )
        other.flush()
    assert refused == ["MSG_SIZE_TOO_LARGE"]


@pytest.fixture
def compacted_topic(kafka: LocalKafka) -> Iterator[str]:
    """Takes no record without a key, which only the broker knows."""
    name = f"c-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, partitions=4, config={"cleanup.policy": "compact"})
    yield name
    kafka.delete_topic(name)


def test_batches_refused_by_the_broker_do_not_poison_those_behind_them(
    kafka: LocalKafka, compacted_topic: str
) -> None:
    batches = [[f"{number}-{place}" for place in range(5)] for number in range(40)]
    keyless = {3, 4, 11, 12, 13, 30, 39}
    failed: list[tuple[int, BrokerError]] = []
    with Producer({"bootstrap.servers": kafka.bootstrap_servers}) as plain:
        for number, rows in enumerate(batches):
            keys = [None if number in keyless else row for row in rows]
            plain.produce_arrow(
                compacted_topic,
                table(value=rows, key=pa.array(keys, pa.string()), partition=[0] * len(rows)),
                lambda error, _, number=number: failed.append((number, error)) if error else None,
            )
        plain.flush()
        assert sorted(number for number, _ in failed) == sorted(keyless)
        for _, error in failed:
            assert isinstance(error, DeliveryFailed)
            assert error.code == 87
            assert "key" in str(error)
        plain.produce(compacted_topic, "behind", key="behind", partition=0)
    expected = [row for number, rows in enumerate(batches) if number not in keyless for row in rows]
    seen = values(kafka.bootstrap_servers, compacted_topic)
    assert seen == [value.encode() for value in [*expected, "behind"]]


def test_a_batch_over_a_limit_that_was_lowered_fails_alone(
    kafka: LocalKafka, plain_topic: str
) -> None:
    told: list[BrokerError | None] = []
    with Producer({"bootstrap.servers": kafka.bootstrap_servers}) as plain:
        plain.produce(plain_topic, "learnt", partition=0)
        plain.flush()
        lower_limit(kafka, plain_topic)
        rows = table(value=["x" * 1000] * 3, partition=[0] * 3)
        plain.produce_arrow(plain_topic, rows, lambda error, _: told.append(error))
        for number in range(5):
            plain.produce(plain_topic, f"{number}", partition=0)
        plain.flush()
    (error,) = told
    assert isinstance(error, DeliveryFailed)
    assert error.code == 10
    assert "max.message.bytes" in str(error)
    seen = [r.value for r in read(kafka.bootstrap_servers, plain_topic) if r.partition == 0]
    assert seen == [b"learnt", *(b"%d" % number for number in range(5))]


def test_a_transaction_with_a_batch_refused_by_the_broker_can_only_be_aborted(
    kafka: LocalKafka, producer: TransactionalProducer, plain_topic: str
) -> None:
    with producer.transaction():
        producer.produce(plain_topic, "learnt", partition=0)
    lower_limit(kafka, plain_topic)
    rows = table(value=[f"{number:0100}" for number in range(100)], partition=[0] * 100)
    producer.begin_transaction()
    producer.produce_arrow(plain_topic, rows)
    with pytest.raises(AbortableError, match=r"100 records to .*-0: .*max\.message\.bytes") as told:
        producer.commit_transaction()
    assert told.value.code == 10
    with pytest.raises(StateError, match="MUST_ABORT"):
        producer.commit_transaction()
    producer.abort_transaction()
    # The rows fit one by one: the limit is learnt anew, and batches are cut to it.
    with producer.transaction():
        producer.produce_arrow(plain_topic, rows)
    seen = [r.value for r in read(kafka.bootstrap_servers, plain_topic) if r.partition == 0]
    assert seen == [b"learnt", *(value.as_py().encode() for value in rows["value"])]
    settle(kafka.bootstrap_servers, plain_topic)


def test_outside_a_transaction_each_row_arrives_or_is_told_to_have_failed(
    kafka: LocalKafka, small_topic: str
) -> None:
    """An unfit row among others that were taken must not make them vanish without a word."""
    told: dict[str, BrokerError | None] = {}

    def report(name: str) -> Callable[[BrokerError | None, Delivery], None]:
        return lambda error, _: told.__setitem__(name, error)

    servers = kafka.bootstrap_servers
    with Producer({"bootstrap.servers": servers, "linger.ms": 1000}) as plain:
        plain.produce(small_topic, "first", partition=0, on_delivery=report("first"))
        plain.produce(small_topic, b"x" * 5000, partition=0, on_delivery=report("large"))
        plain.produce(small_topic, "last", partition=0, on_delivery=report("last"))
        plain.flush()
        assert (told["first"], told["last"]) == (None, None)
        assert isinstance(told["large"], DeliveryFailed)
        assert "max.message.bytes" in str(told["large"])
        # With nobody to tell it to, the failure is raised.
        plain.produce(small_topic, b"x" * 5000, partition=0)
        with pytest.raises(DeliveryFailed, match=r"max\.message\.bytes"):
            plain.flush()
    assert values(servers, small_topic) == [b"first", b"last"]


def test_outside_a_transaction_the_error_says_what_became_of_the_other_rows(
    kafka: LocalKafka, small_topic: str
) -> None:
    with (
        Producer({"bootstrap.servers": kafka.bootstrap_servers}) as plain,
        pytest.raises(EncodeError, match=r"1 rows can't be written; the first is row 1: ") as told,
    ):
        plain.produce_arrow(None, numbered(small_topic, b"x" * 5000))
    assert "The other rows were sent" in str(told.value)
    assert values(kafka.bootstrap_servers, small_topic) == [b"first", b"last"]
