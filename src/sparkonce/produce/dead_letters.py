"""Rows that can't be written, as rows that can: the reason and where they belonged in headers.

They go into the same transaction as the rows that were fit, so a row is in its topic or among the
dead letters, never in both and never in neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sparkonce.encode import Rejected

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_HEADER_ROOM_BYTES = 4096

REASON = "sparkonce.dead.reason"
TOPIC = "sparkonce.dead.topic"
SOURCE = "sparkonce.dead.source."
"""With `topic`, `partition` and `offset` behind it, where the row's table has a `source`."""
VALUE_BYTES = "sparkonce.dead.value.bytes"
KEY_BYTES = "sparkonce.dead.key.bytes"


def dead_letters(
    table: pa.Table | pa.RecordBatch,
    topic: str | None,
    rejected: Sequence[Rejected],
    record_bytes_max: int,
) -> pa.Table:
    """Key, value and headers of each rejected row as they were, as far as they fit a record.

    What does not fit is left out, and a header says how long it was: a record that is too large
    for its topic is too large for this one.
    """
    rows = table.take(pa.array([bad.row for bad in rejected], pa.int64())).to_pylist()
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[list[tuple[str, bytes | None]]] = []
    for bad, row in zip(rejected, rows, strict=True):
        key, value = _bytes(row.get("key")), _bytes(row.get("value"))
        notes = notes_on(topic or row.get("topic"), bad.reason)
        for field, content in (row.get("source") or {}).items():
            notes.append((SOURCE + field, str(content).encode()))
        own = [(h["key"], h["value"]) for h in row.get("headers") or ()]
        own_bytes = sum(len(name) + len(content or b"") + 16 for name, content in own)
        room = record_bytes_max - _HEADER_ROOM_BYTES
        if own_bytes > room // 2:
            own, own_bytes = [], 0
        room -= own_bytes
        if len(key or b"") > room // 2:
            notes.append((KEY_BYTES, str(len(key or b"")).encode()))
            key = None
        if len(key or b"") + len(value or b"") > room:
            notes.append((VALUE_BYTES, str(len(value or b"")).encode()))
            value = None
        keys.append(key)
        values.append(value)
        headers.append(notes + own)
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in notes] for notes in headers], _HEADERS
            ),
        }
    )


def notes_on(topic: str | None, reason: str) -> list[tuple[str, bytes | None]]:
    """The headers of a dead letter: why it is one, and where it belonged."""
    notes: list[tuple[str, bytes | None]] = [(REASON, reason.encode())]
    if topic is not None:
        notes.append((TOPIC, topic.encode()))
    return notes


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
