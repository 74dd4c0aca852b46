"""Which rows a batch has, as SQL: those of its end's mark that are not in its start's.

A row's transaction is in its system column `xmin`, or in a column of the user's. `xmin` has 32 of
the 64 bits: a row seems to be of a window if its number is, whatever the bits above it are. That
can't be mistaken as long as a server has had fewer than 2**32 transactions. After that rows of
former rounds would seem new; with `keyLag` only rows near the greatest key are looked at, which
leaves the old ones out.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from sparkonce.ingest.position import Mark, Place, Position
from sparkonce.ingest.postgres.catalog import quoted
from sparkonce.ingest.span import WHOLE, Span
from sparkonce.ingest.table import Column

XIDS = 2**32
_FIRST_NORMAL = 3
"""Numbers below stand for rows that were always there."""
_SNAPSHOT_END = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"


@dataclass(frozen=True, slots=True)
class Windows:
    """Writes conditions for one table."""

    order: tuple[Column, ...]
    transaction: Column | None
    """The user's column for it."""
    key_lag: int | None

    def batch(self, start: Position, end: Position) -> str:
        """The rows to read from `start` to `end`."""
        conditions = [self._is_done(end.end, old_too=True)]
        if start.done.upto is not None:
            conditions.append(f"NOT {self._is_done(start.done)}")
            conditions += self._recent(start.done)
        if start.after is not None:
            conditions.append(self.compared(">", start.after))
        if end.after is not None:
            conditions.append(self.compared("<=", end.after))
        return " AND ".join(conditions)

    def given_out(self, end: Position) -> str:
        """All rows that were read up to `end`; nothing that may not have been."""
        done = self._is_done(end.done)
        if end.window is None or end.after is None:
            return done
        return f"({done} OR {self._is_done(end.window)} AND {self.compared('<=', end.after)})"

    def pending(self, done: Mark, xid: int) -> str:
        """Rows that can be seen and must wait, since a transaction before theirs is open."""
        return " AND ".join([self._is_since(xid), *self._recent(done)])

    def beyond(self, mark: Mark) -> str:
        return "true" if mark.upto is None else self.compared(">", mark.upto)

    def compared(self, how: str, place: Place) -> str:
        return f"({self.names}) {how} ({self._values(place)})"

    @property
    def names(self) -> str:
        return ", ".join(quoted(column.name) for column in self.order)

    @property
    def backwards(self) -> str:
        return ", ".join(f"{quoted(column.name)} DESC" for column in self.order)

    def _is_done(self, mark: Mark, *, old_too: bool = False) -> str:
        if mark.upto is None:
            return "false"
        done = f"(NOT {self._is_since(mark.xid)} AND {self.compared('<=', mark.upto)})"
        if old_too and self._recent(mark):
            # Of a row that far back the transaction says nothing, in a server past 2**32.
            return f"({done} OR NOT {self._recent(mark)[0]})"
        return done

    def _recent(self, done: Mark) -> list[str]:
        if self.key_lag is None or done.upto is None:
            return []
        return [f"{self.names} > {int(done.upto[-1]) - self.key_lag}"]

    def _is_since(self, xid: int) -> str:
        """Its transaction is `xid` or later; never null."""
        if self.transaction is not None:
            column = quoted(self.transaction.name)
            kind = self.transaction.declared
            return f"({column} IS NOT NULL AND {column} >= '{xid}'::{kind})"
        number = "xmin::text::bigint"
        since = f"(({number} - {xid % XIDS} + {XIDS}) % {XIDS}) < {_SNAPSHOT_END} - {xid}"
        # In a first round, those that were always there are below in any case.
        return (
            f"({since})" if self.key_lag is None else f"({number} >= {_FIRST_NORMAL} AND {since})"
        )

    def _values(self, place: Place) -> str:
        return ", ".join(
            f"{sql.Literal(str(value)).as_string(None)}::{column.declared}"
            for value, column in zip(place, self.order, strict=True)
        )


def inside(span: Span, counts: str) -> str:
    if span == WHOLE:
        return "true"
    bounds = [] if span.low is None else [f"{counts} >= {span.low}"]
    bounds += [] if span.high is None else [f"{counts} < {span.high}"]
    both = " AND ".join(bounds)
    return f"({both} OR {counts} IS NULL)" if span.low is None else f"({both})"
