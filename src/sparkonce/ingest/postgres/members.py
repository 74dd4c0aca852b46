"""Whose rows a batch has: the table's own, and those of its children that count at its end.

Pure: from positions, and what is attached now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sparkonce.ingest.position import Position, PositionError
from sparkonce.ingest.postgres.catalog import Relation
from sparkonce.ingest.postgres.children import Children, same_tables


@dataclass(frozen=True, slots=True)
class Members:
    """The tables of one batch."""

    relation: Relation
    children: tuple[int, ...] = ()
    added: tuple[int, ...] = ()
    """Attached since the batch's start: all their rows are new, whoever wrote them when."""
    waiting: tuple[int, ...] = ()
    """Attached, but not before the batch's end."""

    @property
    def source(self) -> str:
        """For FROM. What is attached while the statement runs is not in it, or told by `clause`."""
        name = self.relation.sql.as_string(None)
        return name if self.children or not self.relation.has_rows else f"ONLY {name}"

    @property
    def clause(self) -> list[str]:
        if self.children or not self.relation.has_rows:
            return [one_of((self.relation.oid, *self.children))]
        return []


def members_of(
    relation: Relation,
    children: Children,
    start: Position,
    end: Position,
    has_older_rows: Callable[[Children, int], bool],
) -> Members:
    """`has_older_rows` says whether a child may have rows that are older than its attachment."""
    included = _included(children, end)
    added = []
    if start.done.upto is not None and not _has_the_same(start, end):
        since = [child for child in included if children.xids[child] >= start.done.xid]
        added = [child for child in since if has_older_rows(children, child)]
    waiting = tuple(sorted(children.xids.keys() - included))
    return Members(relation, tuple(sorted(included)), tuple(sorted(added)), waiting)


def carried_over(start: Position, children: Children) -> Position:
    """A position from before `pg_upgrade` as one of this server, which attached the same children
    with other numbers."""
    if not start.is_former:
        return start
    _refuse_others(start.done.children, children.fingerprint)
    return Position(replace(start.done, children=children.fingerprint))


def known_at(children: Children, before: str | None, xid: int) -> str | None:
    """The fingerprint for a mark at this transaction, behind one that had `before`."""
    if children.fingerprint == before:
        return before
    return children.before(xid).fingerprint


def _included(children: Children, end: Position) -> set[int]:
    """The children that count up to there."""
    if end.is_former:
        _refuse_others(end.end.children, children.fingerprint)
    elif end.end.children != children.fingerprint:
        return set(children.before(end.end.xid).xids)
    return set(children.xids)


def _has_the_same(start: Position, end: Position) -> bool:
    if start.is_former:
        # pg_upgrade attached all of them anew: by their numbers all would be new.
        _refuse_others(start.done.children, end.end.children)
        return True
    return start.done.children == end.end.children


def _refuse_others(former: str | None, now: str | None) -> None:
    if not same_tables(former, now):
        raise PositionError(
            "the table has other children (partitions) now than at the last batch before "
            "pg_upgrade, and which of them bring rows along that were not read can't be told. Let "
            "it have the same ones, by their names, until a first batch was read: DETACH those "
            "that are new (or ALTER TABLE … NO INHERIT), make empty ones in place of those that "
            "are gone. Then attach and drop as you like"
        )


def one_of(tables: tuple[int, ...]) -> str:
    return f"tableoid = ANY ('{{{','.join(map(str, tables))}}}'::oid[])"
