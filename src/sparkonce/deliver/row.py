"""A ledger row: the entry's fields as columns, so that a look at the table tells how far it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from sparkonce.deliver.store import Held, Sources
from sparkonce.errors import FatalError
from sparkonce.stream.ledger import Entry

COLUMNS: Final = (
    ("pipeline", "text"),
    ("epoch", "bigint"),
    ("number", "bigint"),
    ("batch", "bigint"),
    ("query", "text"),
    ("guarantee", "text"),
    ("host", "text"),
    ("pid", "bigint"),
    ("checkpoint", "text"),
    ("sources", "text"),
    ("state", "text"),
)
"""Names and types; standard SQL, so that every database takes them. `sources` is JSON: a list with
the offsets of each source, Kafka's as Spark writes them."""

NAMES: Final = ", ".join(name for name, _ in COLUMNS)
READ: Final = ", ".join(name for name, _ in COLUMNS[1:])
"""All but the pipeline."""


def older(than: str) -> str:
    """What a row must be for an entry to follow it: whatever goes wrong, none is noted twice."""
    return f"(number IS NULL OR number < {than})"


def check_noted(rows: int, entry: Entry) -> None:
    if rows != 1:
        raise FatalError(
            f"the ledger is at {entry} or beyond already: another driver writes as this pipeline, "
            "or this batch was written before. Start the query again, and it goes on from there"
        )


def to_row(entry: Entry, sources: Sources) -> dict[str, Any]:
    """What `note` sets; pipeline and epoch are there already."""
    return {
        "number": entry.number,
        "batch": entry.batch,
        "query": entry.query,
        "guarantee": entry.guarantee,
        "host": entry.host,
        "pid": entry.pid,
        "checkpoint": entry.checkpoint,
        "sources": json.dumps(sources, separators=(",", ":")),
        "state": entry.state,
    }


def from_row(row: Sequence[Any]) -> Held:
    """Of the columns `READ`."""
    epoch, number, batch, query, guarantee, host, pid, checkpoint, sources, state = row
    if number is None:
        return Held(epoch, None, None)
    entry = Entry(
        query=query,
        batch=batch,
        number=number,
        guarantee=guarantee,
        host=host,
        pid=pid,
        checkpoint=checkpoint,
        sources=None,
        state=state,
    )
    return Held(epoch, entry, json.loads(sources))
