"""What brings staged rows into a table of DuckDB. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sparkonce.deliver.sql import Move


def statements(move: Move) -> Iterator[str]:
    if (delete := move.delete()) is not None:
        yield delete
    if not move.upserts:
        yield move.insert()
        return
    # To DuckDB's ON CONFLICT, rows of one statement with null keys are the same row, and it keeps
    # one of them; to its table they are not.
    whole = f"(SELECT * FROM {move.newest} AS w WHERE NOT ({move.has_null}))"
    null = f"(SELECT * FROM {move.ready or move.good} AS w WHERE {move.has_null})"
    yield replace(move, ready=whole).insert()
    yield replace(move, ready=null, upserts=False).insert()
