"""Whose rows a batch has: the table's own, and those of its children that count at its end.

Pure: from positions, and what is attached now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkonce.ingest.position import Mark, Position
from sparkonce.ingest.postgres.catalog import Relation
from sparkonce.ingest.postgres.children import Children


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
    end: Mark,
    has_older_rows: Callable[[Children, int], bool],
) -> Members:
    """`has_older_rows` says whether a child may have rows that are older than its attachment."""
    included = included_at(children, end)
    added = []
    if start.done.upto is not None and start.done.children != end.children:
        since = [child for child in included if children.xids[child] >= start.done.xid]
        added = [child for child in since if has_older_rows(children, child)]
    waiting = tuple(sorted(children.xids.keys() - included))
    return Members(relation, tuple(sorted(included)), tuple(sorted(added)), waiting)


def included_at(children: Children, mark: Mark) -> set[int]:
    """The children that count up to a mark."""
    if mark.children == children.fingerprint:
        return set(children.xids)
    return set(children.before(mark.xid).xids)


def known_at(children: Children, before: str | None, xid: int) -> str | None:
    """The fingerprint for a mark at this transaction, behind one that had `before`."""
    if children.fingerprint == before:
        return before
    return children.before(xid).fingerprint


def one_of(tables: tuple[int, ...]) -> str:
    return f"tableoid = ANY ('{{{','.join(map(str, tables))}}}'::oid[])"
