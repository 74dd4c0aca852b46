"""The batches of a table as SQL: which tables' rows, and which of them.

What is attached is asked for each time, over the connection that reads: a batch that is run again
has the same tables, as far as they are still there.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkonce.ingest.position import Mark, Place, Position
from sparkonce.ingest.postgres.catalog import Relation
from sparkonce.ingest.postgres.children import Ask, Children, find_children
from sparkonce.ingest.postgres.members import Members, members_of
from sparkonce.ingest.postgres.window import Windows


@dataclass(frozen=True, slots=True)
class Batches:
    """Of one table, as one connection sees it."""

    relation: Relation
    windows: Windows
    ask: Ask

    def rows(self, start: Position, end: Position, children: Children | None = None) -> str:
        """The rows of a batch, as what follows FROM."""
        members = self.members(start, end, children)
        return f"{members.source} WHERE {self.windows.batch(start, end, members)}"

    def given_out(self, end: Position, mark: Mark, after: Place | None) -> str:
        """All rows that were read up to a mark of `end`, as what follows FROM; no others."""
        position = Position(mark, is_former=end.is_former)
        members = self.members(position, position)
        return f"{members.source} WHERE {self.windows.given_out(mark, members, after)}"

    def members(self, start: Position, end: Position, children: Children | None = None) -> Members:
        children = children or self.children()
        return members_of(self.relation, children, start, end, self._has_older_rows)

    def children(self) -> Children:
        return find_children(self.ask, self.relation.oid)

    def _has_older_rows(self, children: Children, child: int) -> bool:
        """Than its attachment. One that was made where it is has none, and need not be searched."""
        found = children.named(child)
        if not found.may_be_asked:
            return True  # for all we know
        older = f"SELECT FROM ONLY {found.name} WHERE {self.windows.older(children.xids[child])}"
        ((has,),) = self.ask(f"SELECT EXISTS ({older})")
        return bool(has)
