"""Exactly-once data pipelines between Kafka, Spark and databases, from Python."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkonce.produce import (
        Delivery,
        OffsetAndMetadata,
        Producer,
        ProducerIdentity,
        TransactionalProducer,
    )
    from sparkonce.sessions import session
    from sparkonce.stream.batch import write
    from sparkonce.stream.frames import deduplicate, guarded, read_stream, source
    from sparkonce.stream.writer import write_stream

__all__ = [
    "Delivery",
    "OffsetAndMetadata",
    "Producer",
    "ProducerIdentity",
    "TransactionalProducer",
    "deduplicate",
    "guarded",
    "read_stream",
    "session",
    "source",
    "write",
    "write_stream",
]

# Imported when they are asked for: who only produces needs no Spark, a process that reads a table
# for Spark needs no producer, and neither waits for what it doesn't need.
_HOMES = {
    "Delivery": "sparkonce.produce",
    "OffsetAndMetadata": "sparkonce.produce",
    "Producer": "sparkonce.produce",
    "ProducerIdentity": "sparkonce.produce",
    "TransactionalProducer": "sparkonce.produce",
    "deduplicate": "sparkonce.stream.frames",
    "guarded": "sparkonce.stream.frames",
    "read_stream": "sparkonce.stream.frames",
    "session": "sparkonce.sessions",
    "source": "sparkonce.stream.frames",
    "write": "sparkonce.stream.batch",
    "write_stream": "sparkonce.stream.writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    # In place of the submodule of the same name, and for the next time.
    globals()[name] = value
    return value
