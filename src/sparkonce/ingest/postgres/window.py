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
from sparkonce.ingest.postgres.members import Members, one_of
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

    def batch(self, start: Position, end: Position, members: Members) -> str:
        """The rows to read from `start` to `end`."""
        conditions = [*members.clause, self._is_done(end.end, old_too=True)]
        if start.done.upto is not None:
            new = " AND ".join([self._is_beyond(start.done), *self._recent(start.done)])
            # Without others nothing stands in the way of an index.
            conditions.append(f"({new} OR {one_of(members.added)})" if members.added else new)
        if start.after is not None:
            conditions.append(self.compared(">", start.after))
        if end.after is not None:
            conditions.append(self.compared("<=", end.after))
        return " AND ".join(conditions)

    def given_out(self, mark: Mark, members: Members, after: Place | None = None) -> str:
        """All rows that were read up to `mark`; nothing that may not have been."""
        conditions = [*members.clause, self._is_done(mark)]
        if after is not None:
            conditions.append(self.compared("<=", after))
        return " AND ".join(conditions)

    def pending(self, done: Mark, xid: int, members: Members) -> str:
        """Rows that can be seen and must wait, since a transaction before theirs is open."""
        written = " AND ".join([self._is_since(xid), *self._recent(done)])
        return f"({written} OR {one_of(members.waiting)})" if members.waiting else written

    def older(self, xid: int) -> str:
        """Rows by transactions before this one, as far as they can be told."""
        return "true" if self.key_lag is not None else self._is_before(xid)

    @property
    def to_come(self) -> str:
        """Rows that name a transaction which has not begun: with a column of the user's only."""
        assert self.transaction is not None
        column, declared = quoted(self.transaction.name), self.transaction.declared
        return f"{column} >= {_SNAPSHOT_END}::text::{declared}"

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
        done = f"{self._is_before(mark.xid)} AND {self.compared('<=', mark.upto)}"
        if old_too and self._recent(mark):
            # Of a row that far back the transaction says nothing, in a server past 2**32.
            return f"({done} OR NOT {self._recent(mark)[0]})"
        return done

    def _is_beyond(self, mark: Mark) -> str:
        """The opposite, spelled out: PostgreSQL uses no index for what is not at or before a row
        of several values."""
        assert mark.upto is not None
        return f"({self._is_since(mark.xid)} OR {self.compared('>', mark.upto)})"

    def _recent(self, done: Mark) -> list[str]:
        if self.key_lag is None or done.upto is None:
            return []
        return [f"{self.names} > {int(done.upto[-1]) - self.key_lag}"]

    def _is_before(self, xid: int) -> str:
        """Its transaction is before `xid`; never null."""
        if self.transaction is not None:
            return self._by_column("<", xid)
        return f"NOT {self._is_since(xid)}"

    def _is_since(self, xid: int) -> str:
        """Its transaction is `xid` or later; never null."""
        if self.transaction is not None:
            return self._by_column(">=", xid)
        number = "xmin::text::bigint"
        since = f"(({number} - {xid % XIDS} + {XIDS}) % {XIDS}) < {_SNAPSHOT_END} - {xid}"
        # In a first round, those that were always there are below in any case.
        return (
            f"({since})" if self.key_lag is None else f"({number} >= {_FIRST_NORMAL} AND {since})"
        )

    def _by_column(self, how: str, xid: int) -> str:
        assert self.transaction is not None
        return f"{quoted(self.transaction.name)} {how} '{xid}'::{self.transaction.declared}"

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
