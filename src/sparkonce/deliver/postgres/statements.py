"""What is PostgreSQL's own in the statements that bring staged rows into the table. Pure.

Rows are locked in the order of their keys, whatever order they were staged in: two pipelines that
upsert the same keys wait for each other instead of locking each other out.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkonce.deliver.columns import BAD, DELETED
from sparkonce.deliver.sql import Move, quoted

_CHOSEN = "_sparkonce_chosen"
_GONE = "_sparkonce_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresMove(Move):
    """From a staging table into the table."""

    stage: str
    counts: str
    """Which of its rows are this attempt's."""

    @property
    def deletes(self) -> bool:
        return DELETED in self.columns.beside

    @property
    def candidates(self) -> str:
        """The newest, each with its place in the stage."""
        bad = f" AND {BAD} IS NULL" if BAD in self.columns.beside else ""
        rows = f"(SELECT ctid AS _sparkonce_at, * FROM {self.stage} WHERE {self.counts}{bad})"
        return self.newest_of(rows)

    @property
    def in_order(self) -> str:
        """Of the names that the table has for its columns: another pipeline may have them in
        another order, and in another case."""
        names = sorted(self.columns.keys, key=self.theirs) if self.upserts else []
        values = ", ".join(self.key(name, f"n.{quoted(name)}") for name in names)
        return f" ORDER BY {values}" if values else ""

    @property
    def deletes_first(self) -> str:
        """Where rows are tried in pieces: a new row may have what was unique in a deleted one."""
        order = self.in_order
        return f" ORDER BY NOT n.{DELETED},{order[9:]}" if self.deletes else order

    def lock(self) -> str | None:
        """Before rows are deleted and others inserted, which are two passes over the keys."""
        if not self.deletes:
            return None
        return (
            f"SELECT count(*) FROM (SELECT 1 FROM {self.table} AS t JOIN {self.newest} AS n "
            f"ON {self._same}{self.in_order} FOR NO KEY UPDATE OF t) AS l"
        )

    def write(self, rows: str | None = None) -> str:
        """Deletes and inserts in one statement, at whose end foreign keys are looked at."""
        source = rows or self.newest
        values = ", ".join(self.value(name, f"n.{quoted(name)}") for name in self.columns.names)
        if not self.deletes:
            return (
                f"{self.into} SELECT {values} FROM {source} AS n{self.in_order}{self.on_conflict}"
            )
        # What is asked of the CTE has it run to its end before the first row is inserted: a new row
        # may have what was unique in a deleted one.
        return (
            f"WITH {_CHOSEN} AS MATERIALIZED (SELECT * FROM {source} AS c), {_GONE} AS ("
            f"DELETE FROM {self.table} AS t USING {_CHOSEN} AS n "
            f"WHERE n.{DELETED} AND {self._same} RETURNING 1) "
            f"{self.into} SELECT {values} FROM {_CHOSEN} AS n WHERE NOT n.{DELETED} "
            f"AND (SELECT count(*) FROM {_GONE}) >= 0{self.in_order}{self.on_conflict}"
        )

    @property
    def _same(self) -> str:
        return " AND ".join(self._same_key(name) for name in self.columns.keys)

    def _same_key(self, name: str) -> str:
        theirs, ours = f"t.{self.theirs(name)}", self.key(name, f"n.{quoted(name)}")
        equal = f"{theirs} = {ours}"
        return f"({equal} OR {theirs} IS NULL AND {ours} IS NULL)" if self.nulls_equal else equal
