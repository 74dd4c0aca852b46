"""Brings transactional ids near the end of their producer ids' epochs without 32,766 transactions.

The epoch is planted where the coordinator keeps it: the last record of an id in the topic
`__transaction_state` is written again with another epoch, and the broker started anew to read it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from sparkonce.errors import SparkonceError
from sparkonce.local import LocalKafka
from sparkonce.produce import TransactionalProducer

_TOPIC: Final = "__transaction_state"
_EPOCH_AT: Final = 2 + 8
"""Behind the value's version and the producer id, in all versions of it."""
_MAY_WRITE_THERE: Final = "__admin_client"
"""The client id that brokers take records of internal topics from."""
_TIMEOUT_S: Final = 30.0


def plant(kafka: LocalKafka, epochs: Mapping[str, int]) -> None:
    """Let each of these transactional ids, which nobody uses, be at this epoch.

    Restarts broker 1, which is to be the only one.
    """
    servers = kafka.bootstrap_servers
    for name in epochs:
        with TransactionalProducer({"bootstrap.servers": servers, "transactional.id": name}) as one:
            one.init_transactions()
    _write(kafka, epochs)
    kafka.restart_broker(1)
    kafka.wait_until_healthy()


def _write(kafka: LocalKafka, epochs: Mapping[str, int]) -> None:
    """Its own client, which is gone when the broker goes down."""
    writer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "client.id": _MAY_WRITE_THERE,
            "log_level": 0,
        }
    )
    found = _newest(kafka)
    for name, epoch in epochs.items():
        record = found[name]
        value, partition = record.value(), record.partition()
        assert value is not None and partition is not None
        planted = bytearray(value)
        struct.pack_into(">h", planted, _EPOCH_AT, epoch)
        writer.produce(_TOPIC, bytes(planted), record.key(), partition)
    if left := writer.flush(_TIMEOUT_S):
        raise SparkonceError(f"{left} epochs could not be written to {_TOPIC}")


def _newest(kafka: LocalKafka) -> dict[str, Message]:
    """The last record of each transactional id."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "epochs",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(_TOPIC, timeout=_TIMEOUT_S).topics[_TOPIC].partitions
        consumer.assign([TopicPartition(_TOPIC, index, 0) for index in partitions])
        newest: dict[str, Message] = {}
        left: set[int | None] = set(partitions)
        deadline_s = time.monotonic() + _TIMEOUT_S
        while left:
            if time.monotonic() > deadline_s:
                raise SparkonceError(f"{_TOPIC} could not be read within {_TIMEOUT_S:g} s")
            for message in consumer.consume(1000, 0.1):
                error, key = message.error(), message.key()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                elif error is None and key is not None:
                    # Version and length (two bytes each), then the name.
                    newest[key[4:].decode()] = message
        return newest
    finally:
        consumer.close()
