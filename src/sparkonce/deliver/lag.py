"""Kafka's group offsets, moved after a batch was decided: for those who watch the lag.

The truth is the ledger in the database. So nothing waits for this, and where it fails, a line in
the log is all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sparkonce.deliver.store import Sources
from sparkonce.stream.sources import Source

_KAFKA = "kafka."
_CONNECTING = ("bootstrap.servers", "client.", "sasl.", "security.", "ssl.")
"""What of a source's settings is needed here; how it reads is not, and has other names there."""
_log = logging.getLogger("sparkonce.deliver")


class Lag:
    """The consumer group of a pipeline, on the cluster that its first Kafka source is on."""

    def __init__(self, pipeline: str, settings: Mapping[str, str]) -> None:
        self._pipeline = pipeline
        self._failed = False
        self._consumer = Consumer(
            {
                **settings,
                "group.id": pipeline,
                "enable.auto.commit": False,
                "on_commit": self._heard,
                "log_level": 2,
            }
        )

    @classmethod
    def of(cls, pipeline: str, sources: Sequence[Source]) -> Lag | None:
        """None where nothing is read from Kafka, or in a way that librdkafka does not know."""
        for source in sources:
            if source.is_kafka:
                given = {
                    name.removeprefix(_KAFKA): value
                    for name, value in source.options.items()
                    if name.removeprefix(_KAFKA).startswith(_CONNECTING)
                }
                try:
                    return cls(pipeline, given)
                except KafkaException as error:
                    _log.warning("%s: its lag is not shown in Kafka: %s", pipeline, error)
        return None

    def move(self, sources: Sources) -> None:
        offsets = [
            TopicPartition(topic, int(partition), offset)
            for source in sources
            if not isinstance(source, str)
            for topic, partitions in source.items()
            for partition, offset in partitions.items()
        ]
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
            self._consumer.poll(0)  # hears what became of earlier ones
        except (KafkaException, RuntimeError) as error:
            self._heard(error, offsets)

    def close(self) -> None:
        """What is under way gets there, if the cluster answers."""
        self._consumer.poll(0)
        self._consumer.close()

    def _heard(self, error: object, offsets: Sequence[TopicPartition]) -> None:
        if error and not self._failed:
            _log.warning("%s: its lag is not shown in Kafka: %s", self._pipeline, error)
        self._failed = bool(error)
