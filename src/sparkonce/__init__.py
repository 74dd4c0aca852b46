"""Exactly-once data pipelines between Kafka, Spark and databases, from Python."""

from sparkonce.produce import (
    Delivery,
    OffsetAndMetadata,
    Producer,
    ProducerIdentity,
    TransactionalProducer,
)

__all__ = [
    "Delivery",
    "OffsetAndMetadata",
    "Producer",
    "ProducerIdentity",
    "TransactionalProducer",
]
