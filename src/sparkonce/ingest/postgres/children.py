"""Child tables (partitions, and tables that inherit), and which transaction attached each.

A table that is attached brings its rows along, with the numbers of the transactions that wrote
them, which may lie far below a position. So to a reader such a row is as new as the attachment: its
number is the greater one of its own and of its table's. That of an attachment is the `xmin` of its
row in `pg_inherits`.

`xmin` has 32 bits. In a server that has had more transactions, the number of an old attachment may
seem to be a new one. So a position also names the children it knows, by a fingerprint: as long as
there are the same, none was attached, whatever their numbers seem to say. The fingerprint's first
half is of their names alone. It is the same behind `pg_upgrade`, which attaches all of them anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sparkonce.errors import ConfigError

Ask = Callable[[str], list[tuple[Any, ...]]]
"""Rows for SQL, over whatever connection."""

_HALF: Final = 8
_FOREIGN: Final = "f"

# A child that is being detached concurrently is attached no more. Before version 14 there was no
# such thing, nor the column. Direct questions to a child need rights that its parent does not.
_EDGES: Final = """
WITH RECURSIVE edge AS (
    SELECT inhrelid, inhparent, xmin::text::bigint AS number,
           coalesce((to_jsonb(i) ->> 'inhdetachpending')::boolean, false) AS is_leaving
    FROM pg_inherits AS i WHERE inhparent = {root}
  UNION
    SELECT i.inhrelid, i.inhparent, i.xmin::text::bigint,
           coalesce((to_jsonb(i) ->> 'inhdetachpending')::boolean, false)
    FROM edge JOIN pg_inherits AS i ON i.inhparent = edge.inhrelid WHERE NOT edge.is_leaving
)
SELECT inhrelid::bigint, inhparent::bigint, number,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       relkind::text, quote_ident(nspname) || '.' || quote_ident(relname),
       has_table_privilege(inhrelid, 'SELECT') AND NOT row_security_active(inhrelid)
FROM edge JOIN pg_class AS c ON c.oid = inhrelid JOIN pg_namespace AS n ON n.oid = relnamespace
WHERE NOT is_leaving
"""


@dataclass(frozen=True, slots=True)
class Attachment:
    """That a table is the child of another one."""

    child: int
    parent: int
    number: int
    """Of the transaction that attached it, as `pg_inherits` has it, of 32 bits."""
    xid: int
    """The same with the bits above, if it was one of the last 2**32."""
    name: str
    may_be_asked: bool = False
    """Whether this user sees the same rows in the child itself as through its parents."""


@dataclass(frozen=True)
class Children:
    """What was attached to a table, directly or to one of its children."""

    root: int
    attachments: tuple[Attachment, ...] = ()

    @cached_property
    def fingerprint(self) -> str | None:
        """None where there are no children."""
        if not self.attachments:
            return None
        tables = sorted({each.name for each in self.attachments})
        edges = sorted((each.child, each.parent, each.number) for each in self.attachments)
        return _half(tables) + _half(edges)

    @cached_property
    def xids(self) -> dict[int, int]:
        """By child, the transaction that made its rows visible in the root. Of several ways there
        the one that was complete first counts."""
        found: dict[int, int] = {}
        reached = {self.root: 0}
        while reached:
            ahead: dict[int, int] = {}
            for each in self.attachments:
                if each.parent in reached:
                    xid = max(reached[each.parent], each.xid)
                    if xid < found.get(each.child, xid + 1):
                        found[each.child] = ahead[each.child] = xid
            reached = ahead
        return found

    def before(self, xid: int) -> Children:
        """Without what was attached by this transaction or a later one."""
        older = tuple(each for each in self.attachments if each.xid < xid)
        rooted = Children(self.root, older).xids.keys()
        return Children(self.root, tuple(each for each in older if each.child in rooted))

    def named(self, child: int) -> Attachment:
        return next(each for each in self.attachments if each.child == child)


def find_children(ask: Ask, root: int) -> Children:
    """As they are at this moment; refuses those whose rows do not tell their transactions."""
    found = []
    for child, parent, number, next_xid, kind, name, may_be_asked in ask(_EDGES.format(root=root)):
        if kind == _FOREIGN:
            raise ConfigError(
                f"{name} is a foreign table, attached to the one in dbtable: its rows have no "
                "transactions of this server. DETACH it (or ALTER TABLE … NO INHERIT), or name the "
                "other partitions one by one, each as a stream of its own"
            )
        xid = widened(number, next_xid)
        found.append(Attachment(child, parent, number, xid, name, bool(may_be_asked)))
    return Children(root, tuple(found))


def widened(number: int, next_xid: int) -> int:
    """The last transaction before `next_xid` whose lower 32 bits these are."""
    return number + max(next_xid - 1 - number, 0) // 2**32 * 2**32


def same_tables(one: str | None, other: str | None) -> bool:
    """Whether two fingerprints are of the same children, whichever transactions attached them."""
    return (one and one[:_HALF]) == (other and other[:_HALF])


def _half(values: Iterable[Any]) -> str:
    return hashlib.sha256(repr(list(values)).encode()).hexdigest()[:_HALF]
