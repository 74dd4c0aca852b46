"""Partitions that were added since a producer asked for the topic: rows may name them at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from oracle import read, values
from parts import add_partitions
from sparkonce import Producer
from sparkonce.local import LocalKafka


@pytest.mark.parametrize("topic_named_by", ["the argument", "the rows"])
def test_rows_are_no_dead_letters(
    kafka: LocalKafka, plain_topic: str, graves: str, topic_named_by: str
) -> None:
    servers = kafka.bootstrap_servers
    with Producer({"bootstrap.servers": servers, "dead.letter.topic": graves}) as producer:
        producer.produce(plain_topic, "before")
        producer.flush()
        add_partitions(servers, plain_topic, 6)
        named = pa.table(
            {
                "topic": [plain_topic] * 2,
                "value": ["fit", "unfit"],
                "partition": pa.array([5, 6], pa.int32()),
            }
        )
        if topic_named_by == "the rows":
            producer.produce_arrow(None, named)
        else:
            producer.produce_arrow(plain_topic, named.drop(["topic"]))
    seen = {record.value: record.partition for record in read(servers, plain_topic)}
    assert seen.keys() == {b"before", b"fit"} and seen[b"fit"] == 5
    assert values(servers, graves) == [b"unfit"]


def test_rows_are_not_refused(kafka: LocalKafka, plain_topic: str) -> None:
    servers = kafka.bootstrap_servers
    with Producer({"bootstrap.servers": servers}) as producer:
        producer.produce(plain_topic, "before", partition=0)
        producer.flush()
        add_partitions(servers, plain_topic, 6)
        producer.produce(plain_topic, "by row", partition=5)
        producer.flush()
        add_partitions(servers, plain_topic, 7)
        table = pa.table({"value": ["by table"], "partition": pa.array([6], pa.int32())})
        producer.produce_arrow(plain_topic, table)
    seen = {(record.value, record.partition) for record in read(servers, plain_topic)}
    assert seen == {(b"before", 0), (b"by row", 5), (b"by table", 6)}
