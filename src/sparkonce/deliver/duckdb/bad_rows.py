"""Rows that the table does not take: found by halving, and put aside with the others' commit.

All at once first, which is the rule. DuckDB gives up a transaction in which a row was refused, so
which row it was is tried out in transactions that are rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import duckdb

from sparkonce.deliver.duckdb.file import Opened
from sparkonce.deliver.sql import Move, listed, literal

REFUSALS = (duckdb.ConstraintException, duckdb.ConversionException, duckdb.OutOfRangeException)
_ROWS = "temp.main.sparkonce_rows"
_REFUSED = "temp.main.sparkonce_refused"


def set_aside(connection: Opened, move: Move) -> Move:
    """Outside of a transaction: the same move without rows that are refused, which `refused`
    then tells."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE sparkonce_rows AS "
        f"SELECT row_number() OVER () AS _id, * FROM {move.newest} AS n"
    )
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE sparkonce_refused (_id bigint, reason varchar)"
    )
    (count,) = connection.execute(f"SELECT count(*) FROM {_ROWS}").fetchone() or (0,)
    good = f"(SELECT * FROM {_ROWS} WHERE _id NOT IN (SELECT _id FROM {_REFUSED}))"
    for number, reason in _search(connection, move, good, 1, count):
        connection.execute(f"INSERT INTO {_REFUSED} VALUES (?, ?)", [number, reason])
    return replace(move, ready=good)


def refused(pipeline: str, dead: str, move: Move) -> str:
    """Into the dead letters."""
    return (
        f'INSERT INTO {dead} (pipeline, reason, "row") SELECT {literal(pipeline)}, reason, '
        f"CAST(to_json(struct_pack({listed(move.columns.names)})) AS varchar) "
        f"FROM {_ROWS} JOIN {_REFUSED} USING (_id)"
    )


def _search(
    connection: Opened, move: Move, good: str, first: int, last: int
) -> Iterator[tuple[int, str]]:
    """Those before are good: with them a row may be the second of a key."""
    if first > last:
        return
    upto = replace(move, ready=f"(SELECT * FROM {good} AS g WHERE _id <= {last})")
    reason = _reason(connection, upto)
    if reason is None:
        return
    if first == last:
        yield first, reason
        return
    middle = (first + last) // 2
    yield from _search(connection, move, good, first, middle)
    yield from _search(connection, move, good, middle + 1, last)


def _reason(connection: Opened, move: Move) -> str | None:
    connection.execute("BEGIN")
    try:
        if (delete := move.delete()) is not None:
            connection.execute(delete)
        connection.execute(move.insert())
    except REFUSALS as error:
        return str(error).splitlines()[0]
    finally:
        connection.execute("ROLLBACK")
    return None
