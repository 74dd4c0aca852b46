"""What can't be written is refused with words that help, and nothing else is lost or torn by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from oracle import settle, values
from parts import a_producer
from sparkonce import Producer, TransactionalProducer
from sparkonce.errors import (
    BrokerError,
    ConfigError,
    EncodeError,
    FatalError,
    SparkonceError,
    StateError,
)
from sparkonce.local import LocalKafka
from sparkonce.produce import State

NO_TOPIC = "no-such-topic"

Verb = Callable[[TransactionalProducer, str], None]


@pytest.fixture
def producer(kafka: LocalKafka) -> Iterator[TransactionalProducer]:
    with a_producer(kafka, max_block_ms=5000, request_timeout_ms=4000) as opened:
        yield opened


def table(**columns: object) -> pa.Table:
    return pa.table(columns)


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
    settle(kafka.bootstrap_servers, topic)


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
