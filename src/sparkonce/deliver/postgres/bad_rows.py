"""Rows that the table does not take: found on the server, in the transaction of the others.

All at once first, which is the rule. Only a batch with a bad row in it is searched: as many rows
as were good before the last bad one are tried together, and where they are refused, the first bad
one is found by halving. So the number of trials, each of which costs a transaction number of the
server, grows with the bad rows and not with the batch.

What a trial has written stays; a bad row is marked in the stage, and moved to the dead letters with
those that were marked before. Where a key's newest row is bad, the one before it is the newest.

One statement takes rows that need each other, in pieces they are refused. So deletes are tried
before inserts, as the statement does it; and a row that others stand in the way of, or are missing
for, is tried again when others were written, at first together with all that wait like it.
"""

from __future__ import annotations

import psycopg

from sparkonce.deliver.columns import BAD, RANK, ROW, SEQUENCE, TASK
from sparkonce.deliver.postgres.layout import TableFacts
from sparkonce.deliver.postgres.statements import PostgresMove
from sparkonce.deliver.sql import literal, quoted
from sparkonce.deliver.store import RowsRefused
from sparkonce.postgresql import Connection

_CLASSES = (
    psycopg.IntegrityError,
    psycopg.DataError,
    psycopg.errors.ProgramLimitExceeded,  # an index entry that is too large
    psycopg.errors.WithCheckOptionViolation,
)
_CONDITIONS = (
    "integrity_constraint_violation",
    "data_exception",
    "program_limit_exceeded",
    "with_check_option_violation",
)
_WAITING = ("23503", "23505", "23P01")
"""Foreign keys, and what is unique or excludes others: another row of the batch may bring what a
row refers to, or make room for it."""

_POLICIES = "ExecWithCheckOptions"
"""The function of the server's source that compares rows with policies."""


def tells_of_a_row(error: psycopg.Error, facts: TableFacts) -> bool:
    """Whether another row would do better. A policy's refusal has the code of a missing privilege,
    which no row has: they differ in the place of the server's source that they are from."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return facts.has_row_security and error.diag.source_function == _POLICIES
    return isinstance(error, _CLASSES)


def check_keys(connection: Connection, move: PostgresMove) -> None:
    if (several := move.several()) and (key := connection.execute(several).fetchone()):
        raise RowsRefused(
            f"there are several rows with the key {key} in one batch, and nothing says which "
            "is the newest: set sequenceBy, a column that grows"
        )


def set_aside(connection: Connection, move: PostgresMove, facts: TableFacts) -> None:
    """Write all rows that the table takes, and mark the others as bad."""
    caught = [*_CONDITIONS, *(["insufficient_privilege"] if facts.has_row_security else [])]
    part = f"(SELECT * FROM {move.stage} WHERE ctid = ANY (_sparkonce_part))"
    if move.key_casts:
        # Before the newest of a key is looked for, each key must be one.
        casts = ", ".join(move.key(name, f"n.{quoted(name)}") for name in move.columns.keys)
        tried = f"PERFORM count(ROW({casts})) FROM {part} AS n"
        rows = f"SELECT ctid FROM {move.stage} WHERE {move.counts} AND {BAD} IS NULL"
        connection.execute(_search(move, tried, rows, caught))
    check_keys(connection, move)
    if (lock := move.lock()) is not None:
        connection.execute(lock)
    rows = f"SELECT _sparkonce_at FROM {move.candidates} AS n{move.deletes_first}"
    connection.execute(_search(move, move.write(part), rows, caught))


def _search(move: PostgresMove, tried: str, rows: str, caught: list[str]) -> str:
    """`tried` is what is done with `_sparkonce_part` of the places in the stage that `rows` are."""
    beside = ", ".join(literal(name) for name in (*move.columns.beside, RANK, TASK))
    again = "true" if SEQUENCE in move.columns.beside else "false"
    # Columns of the user's go before variables, which have names that no column may have.
    return f"""DO $sparkonce$
#variable_conflict use_column
DECLARE
  _sparkonce_todo tid[] := ARRAY({rows});
  _sparkonce_tried tid[] := _sparkonce_todo;
  _sparkonce_waiting tid[];
  _sparkonce_lane tid[];  -- of those that were not tried yet, the next ones: short, so that
                          -- a trial does not copy the places of the whole batch
  _sparkonce_part tid[];
  _sparkonce_count int;
  _sparkonce_first int;  -- of those that were not tried yet
  _sparkonce_low int;    -- in the lane: up to here they were good
  _sparkonce_high int;   -- before this one is the first that is bad, if it is known that one is
  _sparkonce_end int;    -- of those that are tried now
  _sparkonce_size int;
  _sparkonce_is_known boolean := true;
  _sparkonce_refused boolean := false;
  _sparkonce_state text;
  _sparkonce_reason text;
  _sparkonce_reasons text[];
BEGIN
  LOOP
    _sparkonce_count := cardinality(_sparkonce_todo);
    _sparkonce_first := 1;
    _sparkonce_size := _sparkonce_count;
    _sparkonce_waiting := '{{}}';
    _sparkonce_reasons := '{{}}';
    WHILE _sparkonce_first <= _sparkonce_count LOOP
      _sparkonce_lane := _sparkonce_todo[_sparkonce_first:_sparkonce_first + _sparkonce_size - 1];
      _sparkonce_low := 1;
      _sparkonce_high := cardinality(_sparkonce_lane) + 1;
      LOOP
        _sparkonce_end := CASE
          WHEN NOT _sparkonce_is_known THEN _sparkonce_high
          WHEN _sparkonce_high - _sparkonce_low > 1 THEN (_sparkonce_low + _sparkonce_high) / 2
          ELSE _sparkonce_high END;
        _sparkonce_part := _sparkonce_lane[_sparkonce_low:_sparkonce_end - 1];
        _sparkonce_state := NULL;
        BEGIN
          {tried};
        EXCEPTION WHEN {" OR ".join(caught)} THEN
          _sparkonce_state := SQLSTATE;
          _sparkonce_reason := SQLERRM;
        END;
        IF _sparkonce_state IS NULL THEN
          _sparkonce_low := _sparkonce_end;
          EXIT WHEN _sparkonce_low = _sparkonce_high;
        ELSIF _sparkonce_end - _sparkonce_low > 1 THEN
          _sparkonce_high := _sparkonce_end;
          _sparkonce_is_known := true;
        ELSE
          IF _sparkonce_state IN ({", ".join(map(literal, _WAITING))}) THEN
            -- Backwards: what it waits for may be behind it.
            _sparkonce_waiting := _sparkonce_lane[_sparkonce_low] || _sparkonce_waiting;
            _sparkonce_reasons := _sparkonce_reason || _sparkonce_reasons;
          ELSE
            _sparkonce_refused := true;
            UPDATE {move.stage} AS _sparkonce_row SET {BAD} = _sparkonce_reason,
              {ROW} = (to_jsonb(_sparkonce_row) - ARRAY[{beside}])::text
              WHERE ctid = _sparkonce_lane[_sparkonce_low];
          END IF;
          _sparkonce_low := _sparkonce_low + 1;
          EXIT;
        END IF;
      END LOOP;
      _sparkonce_first := _sparkonce_first + _sparkonce_low - 1;
      _sparkonce_size := CASE WHEN _sparkonce_state IS NULL THEN 2 * _sparkonce_size
        ELSE _sparkonce_low - 1 END;
      _sparkonce_size := least(_sparkonce_size, _sparkonce_count);
      _sparkonce_is_known := false;
    END LOOP;
    _sparkonce_todo := '{{}}';
    LOOP
      IF _sparkonce_refused AND {again} THEN
        _sparkonce_todo := ARRAY(SELECT _sparkonce_at
          FROM ({rows}) AS _sparkonce_new (_sparkonce_at)
          WHERE NOT EXISTS (SELECT FROM unnest(_sparkonce_tried) AS _sparkonce_old (_sparkonce_at)
            WHERE _sparkonce_old._sparkonce_at = _sparkonce_new._sparkonce_at));
        _sparkonce_tried := _sparkonce_tried || _sparkonce_todo;
      END IF;
      _sparkonce_refused := false;
      -- Those that wait are tried again if others were written, put aside or come in between.
      EXIT WHEN cardinality(_sparkonce_todo) > 0
        OR cardinality(_sparkonce_waiting) < greatest(_sparkonce_count, 1);
      _sparkonce_refused := true;
      UPDATE {move.stage} AS _sparkonce_row SET {BAD} = _sparkonce_told._sparkonce_reason,
        {ROW} = (to_jsonb(_sparkonce_row) - ARRAY[{beside}])::text
        FROM unnest(_sparkonce_waiting, _sparkonce_reasons)
          AS _sparkonce_told (_sparkonce_at, _sparkonce_reason)
        WHERE _sparkonce_row.ctid = _sparkonce_told._sparkonce_at;
      _sparkonce_waiting := '{{}}';
    END LOOP;
    _sparkonce_todo := _sparkonce_todo || _sparkonce_waiting;
    EXIT WHEN cardinality(_sparkonce_todo) = 0;
  END LOOP;
END $sparkonce$"""
