"""Rows that the table does not take: put aside one by one, in the transaction of the others.

All at once first, which is the rule; only a batch with a bad row in it is gone through row by row,
on the server.
"""

from __future__ import annotations

import psycopg

from sparkonce.deliver.columns import DELETED, RANK
from sparkonce.deliver.sql import Move, literal, quoted
from sparkonce.postgresql import Connection

_COUNT = "sparkonce.refused"


def insert_or_set_aside(connection: Connection, move: Move, dead: str, pipeline: str) -> int:
    """How many rows were put aside."""
    try:
        with connection.transaction():
            connection.execute(move.insert())
        return 0
    except (psycopg.IntegrityError, psycopg.DataError):
        connection.execute(_one_by_one(move, dead, pipeline))
        counted = connection.execute(f"SELECT current_setting('{_COUNT}')").fetchone()
        return int(counted[0]) if counted else 0


def _one_by_one(move: Move, dead: str, pipeline: str) -> str:
    values = ", ".join(move.value(name, f"r.{quoted(name)}") for name in move.columns.names)
    kept = f" WHERE NOT n.{DELETED}" if DELETED in move.columns.beside else ""
    beside = ", ".join(literal(name) for name in (*move.columns.beside, RANK))
    return f"""DO $sparkonce$
DECLARE
  r record;
  refused bigint := 0;
BEGIN
  FOR r IN SELECT * FROM {move.newest} AS n{kept} LOOP
    BEGIN
      {move.into} VALUES ({values}){move.on_conflict};
    EXCEPTION WHEN integrity_constraint_violation OR data_exception THEN
      refused := refused + 1;
      INSERT INTO {dead} (pipeline, reason, "row")
        VALUES ({literal(pipeline)}, SQLERRM, (to_jsonb(r) - ARRAY[{beside}])::text);
    END;
  END LOOP;
  PERFORM set_config('{_COUNT}', refused::text, true);
END $sparkonce$"""
