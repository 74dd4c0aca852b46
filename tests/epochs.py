"""Brings transactional ids near the end of their producer ids' epochs without 32,766 transactions.

The epoch is planted where the coordinator keeps it: the last record of an id in the topic
`__transaction_state` is written again with another epoch, and the broker started anew to read it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from parts import a_producer
from sparkonce.local import LocalKafka

_TOPIC = "__transaction_state"
_EPOCH_AT = 2 + 8
"""Behind the value's version and the producer id, in all versions of it."""
_MAY_WRITE_THERE = "__admin_client"
"""The client id that brokers take records of internal topics from."""
PATIENCE_S = 30.0


def plant(kafka: LocalKafka, epochs: Mapping[str, int]) -> None:
    """Let each of these transactional ids, nobody's so far, be at this epoch. Restarts broker 1."""
    for name in epochs:
        with a_producer(kafka, transactional_id=name):
            pass
    writer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": _MAY_WRITE_THERE})
    found = _newest(kafka)
    for name, epoch in epochs.items():
        record = found[name]
        value = bytearray(record.value())
        struct.pack_into(">h", value, _EPOCH_AT, epoch)
        writer.produce(_TOPIC, bytes(value), record.key(), record.partition())
    assert writer.flush(PATIENCE_S) == 0
    kafka.restart_broker(1)
    kafka.wait_until_healthy()


def _newest(kafka: LocalKafka) -> dict[str, Message]:
    """The last record of each transactional id."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "epochs",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(_TOPIC, timeout=PATIENCE_S).topics[_TOPIC].partitions
        consumer.assign([TopicPartition(_TOPIC, index, 0) for index in partitions])
        newest: dict[str, Message] = {}
        left = set(partitions)
        while left:
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    # Version and length (two bytes each), then the name.
                    newest[message.key()[4:].decode()] = message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
        return newest
    finally:
        consumer.close()
