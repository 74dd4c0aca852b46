"""Rows that can't be written go to the dead-letter topic, in the same transaction as the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from oracle import Seen, read, settle, values
from parts import a_producer
from sparkonce import Delivery, Producer, TransactionalProducer
from sparkonce.errors import BrokerError, ConfigError, DeadLettered, EncodeError
from sparkonce.local import LocalKafka
from sparkonce.produce.dead_letters import KEY_BYTES, REASON, TOPIC, VALUE_BYTES

NO_TOPIC = "no-such-topic"
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Row = tuple[str, bytes, bytes, int | None]
"""Topic, key, value, partition."""


@pytest.fixture
def producer(kafka: LocalKafka, graves: str) -> Iterator[TransactionalProducer]:
    with a_producer(kafka, dead_letter_topic=graves) as opened:
        yield opened


def by_row(producer: Producer, rows: list[Row]) -> None:
    for topic, key, value, partition in rows:
        producer.produce(topic, value, key=key, partition=partition, headers={"own": key})


def by_table(producer: Producer, rows: list[Row]) -> None:
    topics, keys, contents, partitions = zip(*rows, strict=True)
    table = pa.table(
        {
            "topic": topics,
            "key": keys,
            "value": contents,
            "partition": pa.array(partitions, pa.int32()),
            "headers": pa.array([[{"key": "own", "value": key}] for key in keys], _HEADERS),
        }
    )
    producer.produce_arrow(None, table)


def mixed(small_topic: str) -> list[Row]:
    return [
        (small_topic, b"fit-1", b"a", 0),
        (small_topic, b"over the topic", b"x" * 5000, 0),
        (small_topic, b"no such partition", b"b", 9),
        (small_topic, b"over everything", b"y" * 1_100_000, 0),
        (small_topic, b"fit-2", b"d", 0),
    ]


def by_key(letters: list[Seen]) -> dict[bytes, tuple[bytes | None, dict[str, bytes]]]:
    assert len({letter.key for letter in letters}) == len(letters)
    return {x.key or b"": (x.value, dict(x.headers or [])) for x in letters}


WAYS = pytest.mark.parametrize("write", [by_row, by_table])


@WAYS
def test_unfit_rows_are_buried_with_their_reasons_and_fit_ones_arrive(
    kafka: LocalKafka,
    producer: TransactionalProducer,
    small_topic: str,
    graves: str,
    write: Callable[[Producer, list[Row]], None],
) -> None:
    servers = kafka.bootstrap_servers
    rows = [*mixed(small_topic), (NO_TOPIC, b"no such topic", b"c", None)]
    producer.begin_transaction()
    write(producer, rows)
    producer.flush()
    for topic in (small_topic, graves):
        assert values(servers, topic, while_open=True) == [], "seen before the commit"
    producer.commit_transaction()
    assert values(servers, small_topic) == [b"a", b"d"]
    letters = by_key(read(servers, graves))
    assert set(letters) == {key for _, key, _, _ in rows if not key.startswith(b"fit")}
    expected = {
        b"over the topic": (b"x" * 5000, small_topic, "max.message.bytes"),
        b"no such partition": (b"b", small_topic, "partition 9 is out of range"),
        b"no such topic": (b"c", NO_TOPIC, "unknown"),
        b"over everything": (None, small_topic, "max.request.size"),
    }
    for key, (value, topic, why) in expected.items():
        content, notes = letters[key]
        assert content == value
        assert why in notes[REASON].decode()
        assert notes[TOPIC] == topic.encode()
        assert notes["own"] == key, "the row's own headers are gone"
    assert letters[b"over everything"][1][VALUE_BYTES] == b"1100000"
    settle(servers, graves)
    settle(servers, small_topic)


@WAYS
def test_an_abort_leaves_neither_rows_nor_letters(
    kafka: LocalKafka,
    producer: TransactionalProducer,
    small_topic: str,
    graves: str,
    write: Callable[[Producer, list[Row]], None],
) -> None:
    servers = kafka.bootstrap_servers
    producer.begin_transaction()
    write(producer, mixed(small_topic))
    producer.flush()
    assert len(values(servers, graves, "read_uncommitted")) == 3
    producer.abort_transaction()
    assert values(servers, small_topic) == values(servers, graves) == []
    settle(servers, graves)
    settle(servers, small_topic)


def test_a_key_too_large_for_any_record_is_left_out_and_counted(
    kafka: LocalKafka, producer: TransactionalProducer, small_topic: str, graves: str
) -> None:
    with producer.transaction():
        producer.produce(small_topic, b"value", key=b"k" * 1_100_000)
    (letter,) = read(kafka.bootstrap_servers, graves)
    notes = dict(letter.headers or [])
    assert (letter.key, letter.value) == (None, b"value")
    assert notes[KEY_BYTES] == b"1100000"


def test_without_transactions_letters_are_written_too(
    kafka: LocalKafka, small_topic: str, graves: str
) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "dead.letter.topic": graves}
    with Producer(settings) as plain:
        by_table(plain, mixed(small_topic))
    assert values(kafka.bootstrap_servers, small_topic) == [b"a", b"d"]
    assert len(values(kafka.bootstrap_servers, graves)) == 3


def test_a_row_that_is_buried_has_its_delivery_report_like_any_other(
    kafka: LocalKafka, small_topic: str, graves: str
) -> None:
    told: list[tuple[BrokerError | None, Delivery]] = []
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "dead.letter.topic": graves}
    with Producer(settings) as plain:
        plain.produce(small_topic, b"a", on_delivery=lambda *report: told.append(report))
        plain.produce(small_topic, b"x" * 5000, on_delivery=lambda *report: told.append(report))
        plain.flush()
    assert len(told) == 2
    reports = {delivery.topic: (error, delivery) for error, delivery in told}
    assert reports[small_topic][0] is None
    error, delivery = reports[graves]
    assert isinstance(error, DeadLettered)
    (letter,) = read(kafka.bootstrap_servers, graves)
    assert (delivery.partition, delivery.offset) == (letter.partition, letter.offset)


def test_a_dead_letter_topic_that_is_missing_is_an_error_and_not_a_loss(
    kafka: LocalKafka, small_topic: str
) -> None:
    with a_producer(kafka, dead_letter_topic=NO_TOPIC) as producer:
        producer.begin_transaction()
        with pytest.raises(BrokerError, match=rf"topic '{NO_TOPIC}'.*Create it first"):
            producer.produce_arrow(small_topic, pa.table({"value": ["a"]}))
        producer.abort_transaction()


def test_a_letter_too_large_for_the_dead_letter_topic_fails_the_transaction(
    kafka: LocalKafka, small_topic: str
) -> None:
    with a_producer(kafka, dead_letter_topic=small_topic) as producer:
        producer.begin_transaction()
        with pytest.raises(EncodeError, match=r"max\.message\.bytes"):
            by_table(
                producer, [(small_topic, b"fit", b"a", 0), (small_topic, b"large", b"x" * 5000, 0)]
            )
        producer.abort_transaction()
    assert values(kafka.bootstrap_servers, small_topic) == []


def test_what_the_users_own_code_could_not_read_is_put_aside_in_the_same_transaction(
    kafka: LocalKafka, small_topic: str, graves: str, producer: TransactionalProducer
) -> None:
    producer.begin_transaction()
    producer.produce_dead_letter(small_topic, b"{lost", key=b"k", reason="never mind")
    producer.abort_transaction()
    with producer.transaction():
        producer.produce(small_topic, b"fit")
        producer.produce_dead_letter(
            small_topic, b"{broken", key=b"k", reason="not JSON", headers={"own": b"1"}
        )
    assert values(kafka.bootstrap_servers, small_topic) == [b"fit"]
    (letter,) = read(kafka.bootstrap_servers, graves)
    assert (letter.key, letter.value) == (b"k", b"{broken")
    assert letter.headers == [(REASON, b"not JSON"), (TOPIC, small_topic.encode()), ("own", b"1")]


def test_without_a_dead_letter_topic_there_is_no_putting_aside(
    kafka: LocalKafka, small_topic: str
) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    with (
        Producer(settings) as plain,
        pytest.raises(ConfigError, match=r"dead\.letter\.topic is not set"),
    ):
        plain.produce_dead_letter(small_topic, b"{broken", reason="not JSON")
