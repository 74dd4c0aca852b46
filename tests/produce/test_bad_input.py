"""What can't be written is refused with words that help, and nothing else is lost or torn by it."""

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

from oracle import hanging, read, values
from sparkonce import Delivery, Producer, TransactionalProducer
from sparkonce.errors import (
    AbortableError,
    BrokerError,
    ConfigError,
    DeliveryFailed,
    EncodeError,
    FatalError,
    SparkonceError,
    StateError,
)
from sparkonce.local import LocalKafka
from sparkonce.produce import State

MESSAGE_BYTES = 2000
NO_TOPIC = "no-such-topic"

Verb = Callable[[TransactionalProducer, str], None]


@pytest.fixture
def small_topic(kafka: LocalKafka) -> Iterator[str]:
    """Takes batches of up to 2000 bytes."""
    name = f"s-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, partitions=4, config={"max.message.bytes": str(MESSAGE_BYTES)})
    yield name
    kafka.delete_topic(name)


@pytest.fixture
def producer(kafka: LocalKafka) -> Iterator[TransactionalProducer]:
    with TransactionalProducer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": f"id-{uuid.uuid4().hex[:8]}",
            "max.block.ms": 5000,
            "request.timeout.ms": 4000,
        }
    ) as opened:
        opened.init_transactions()
        yield opened


def table(**columns: object) -> pa.Table:
    return pa.table(columns)


def numbered(topic: str, value: bytes) -> pa.Table:
    """A fit row before and behind."""
    return table(topic=[topic] * 3, value=[b"first", value, b"last"])


# -- settings -----------------------------------------------------------------------------------


def test_a_transactional_producer_needs_a_transactional_id(kafka: LocalKafka) -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id is missing.*name the pipeline"):
        TransactionalProducer({"bootstrap.servers": kafka.bootstrap_servers})


def test_a_plain_producer_has_no_use_for_one(kafka: LocalKafka) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "payments"}
    with pytest.raises(ConfigError, match=r"transactional\.id=payments.*use TransactionalProducer"):
        Producer(settings)


def test_a_transaction_may_not_outlast_what_the_brokers_allow(kafka: LocalKafka) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "patient"}
    with TransactionalProducer(settings | {"transaction.timeout.ms": 3_600_000}) as producer:
        with pytest.raises(FatalError, match=r"lower transaction\.timeout\.ms") as refused:
            producer.init_transactions()
        assert refused.value.code == 50
        assert "transaction.max.timeout.ms" in str(refused.value)


# -- rows: refused here and now, the others are not touched ------------------------------------


ROWS: dict[str, tuple[Verb, type[SparkonceError], str]] = {
    "value over max.request.size": (
        lambda p, t: p.produce(t, b"x" * 1_100_000),
        EncodeError,
        r"1100000 bytes is over max\.request\.size=1048576.*dead\.letter\.topic",
    ),
    "value of a wrong type": (
        lambda p, t: p.produce(t, 5),  # type: ignore[arg-type]
        EncodeError,
        "value is a int: Kafka's values are bytes; give bytes, str or None",
    ),
    "key of a wrong type": (
        lambda p, t: p.produce(t, b"v", key=1.5),  # type: ignore[arg-type]
        EncodeError,
        "key is a float: Kafka's keys are bytes; give bytes, str or None",
    ),
    "header value of a wrong type": (
        lambda p, t: p.produce(t, b"v", headers={"h": 1}),
        EncodeError,
        "header is a int",
    ),
    "header key of a wrong type": (
        lambda p, t: p.produce(t, b"v", headers={1: b"h"}),  # type: ignore[dict-item]
        EncodeError,
        "header",
    ),
    "timestamp of a wrong type": (
        lambda p, t: p.produce(t, b"v", timestamp="now"),  # type: ignore[arg-type]
        EncodeError,
        "timestamp",
    ),
    "timestamp before 1970": (
        lambda p, t: p.produce(t, b"v", timestamp=-1),
        EncodeError,
        "timestamp",
    ),
    "partition out of range": (
        lambda p, t: p.produce(t, b"v", partition=4),
        EncodeError,
        r"partition 4 of '.*' is out of range: it has 4, 0 to 3; leave the partition out",
    ),
    "unknown topic": (
        lambda p, _: p.produce(NO_TOPIC, b"v"),
        BrokerError,
        rf"topic '{NO_TOPIC}': .*\(3\)\. Create it first",
    ),
    "topic of a wrong type": (
        lambda p, t: p.produce(t.encode(), b"v"),  # type: ignore[arg-type]
        EncodeError,
        "topic",
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_row_that_is_refused_leaves_the_others_alone(
    kafka: LocalKafka, producer: TransactionalProducer, plain_topic: str, case: str
) -> None:
    verb, kind, words = ROWS[case]
    with producer.transaction():
        producer.produce(plain_topic, "before", partition=0)
        with pytest.raises(kind, match=words):
            verb(producer, plain_topic)
        producer.produce(plain_topic, "behind", partition=0)
    assert values(kafka.bootstrap_servers, plain_topic) == [b"before", b"behind"]


# -- tables: refused as a whole, the transaction with them ---------------------------------------


REJECTED: dict[str, tuple[Verb, str]] = {
    "row over max.request.size": (
        lambda p, t: p.produce_arrow(t, table(value=[b"first", b"x" * 1_100_000, b"last"])),
        r"1 rows can't be written; the first is row 1: too large.*max\.request\.size",
    ),
    "partition out of range": (
        lambda p, t: p.produce_arrow(t, table(value=["a", "b"], partition=[0, 4])),
        r"first is row 1: partition 4 is out of range: topic '.*' has 4 partitions",
    ),
    "null topic": (
        lambda p, t: p.produce_arrow(None, table(value=["a", "b"], topic=[t, None])),
        "first is row 1: no topic: the column 'topic' is null",
    ),
    "timestamp before 1970": (
        lambda p, t: p.produce_arrow(t, table(value=["a", "b"], timestamp=[1, -1])),
        "first is row 1: timestamp out of range",
    ),
}
REFUSED: dict[str, tuple[Verb, type[SparkonceError], str]] = {
    "column of a wrong type": (
        lambda p, t: p.produce_arrow(t, table(value=[1, 2])),
        EncodeError,
        "column 'value' has type int64; it must be binary or string: cast it",
    ),
    "no column value": (
        lambda p, t: p.produce_arrow(t, table(key=["a"])),
        EncodeError,
        "there is no column 'value'",
    ),
    "unknown column": (
        lambda p, t: p.produce_arrow(t, table(value=["a"], amount=["b"])),
        EncodeError,
        "column 'amount' has no place in a Kafka record; drop it",
    ),
    "no topic": (
        lambda p, _: p.produce_arrow(None, table(value=["a"])),
        EncodeError,
        "neither a topic nor a column 'topic'",
    ),
    "unknown topic": (
        lambda p, _: p.produce_arrow(NO_TOPIC, table(value=["a"])),
        BrokerError,
        rf"topic '{NO_TOPIC}': .*\(3\)\. Create it first",
    ),
    "unknown topic in the column": (
        lambda p, t: p.produce_arrow(None, table(value=["a", "b"], topic=[t, NO_TOPIC])),
        BrokerError,
        rf"topic '{NO_TOPIC}': .*\(3\)\. Create it first",
    ),
} | {case: (verb, EncodeError, words) for case, (verb, words) in REJECTED.items()}


def goes_on(kafka: LocalKafka, producer: TransactionalProducer, topic: str) -> None:
    """Nothing of the aborted transaction is there, and the next one is whole."""
    assert producer.state is State.READY
    with producer.transaction():
        producer.produce_arrow(topic, table(value=["kept"] * 3))
    assert values(kafka.bootstrap_servers, topic) == [b"kept"] * 3
    assert hanging(kafka.bootstrap_servers, topic) == []


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_is_refused_leaves_a_producer_that_goes_on(
    kafka: LocalKafka, producer: TransactionalProducer, plain_topic: str, case: str
) -> None:
    verb, kind, words = REFUSED[case]
    producer.begin_transaction()
    producer.produce(plain_topic, "aborted")
    with pytest.raises(kind, match=words):
        verb(producer, plain_topic)
    producer.abort_transaction()
    goes_on(kafka, producer, plain_topic)


@pytest.mark.parametrize("case", REJECTED)
def test_a_table_with_an_unfit_row_can_only_be_aborted(
    kafka: LocalKafka, producer: TransactionalProducer, plain_topic: str, case: str
) -> None:
    producer.begin_transaction()
    with pytest.raises(EncodeError):
        REJECTED[case][0](producer, plain_topic)
    with pytest.raises(StateError, match=r"MUST_ABORT to COMMITTING.*abort_transaction\(\)"):
        producer.commit_transaction()
    with pytest.raises(StateError, match="MUST_ABORT"):
        producer.produce(plain_topic, "more")
    producer.abort_transaction()
    goes_on(kafka, producer, plain_topic)


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


# -- max.message.bytes -----------------------------------------------------------------------------


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
    goes_on(kafka, producer, small_topic)


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
    assert hanging(kafka.bootstrap_servers, plain_topic) == []
