"""Where a reader stands in a table: what Spark keeps as the source's offset.

Rows have an order: by the key, or by update time and key. A mark says which rows are done with.
In SQLite and DuckDB those are all rows up to a place in the order. PostgreSQL adds the transaction
that wrote a row, since rows may become visible in another order than their keys have: done are rows
up to the place *and* by transactions below `xid`, in tables that were attached below it. Whatever
is not done is read, however small its key. Pure: the databases make SQL of it. docs/ingest.md has
the JSON for users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkonce.errors import SparkonceError

Scalar = int | str
Place = tuple[Scalar, ...]
"""A row's place in the order: its key, or its update time and key. Inclusive wherever it bounds."""


class PositionError(SparkonceError):
    """A checkpoint's position does not fit the table, the options or the server."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Rows at or before `upto` are done with, in PostgreSQL those by transactions below `xid`."""

    upto: Place | None = None
    """None: no row is done with, whatever `xid` is."""
    xid: int = 0
    children: str | None = None
    """PostgreSQL: a fingerprint of the child tables that count; None without any."""


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to `done`; and of the window from there to `window`, what lies up to `after`.

    A window is fixed when it is opened, so that it can be read in several batches while the table
    goes on. Only PostgreSQL needs one: elsewhere a smaller `upto` does the same.
    """

    done: Mark
    window: Mark | None = None
    after: Place | None = None
    is_start: bool = False
    """Of a stream that begins with rows to come. Never an end: the first batch, an empty one, ends
    at the same place without it, and so notes down where the stream began."""
    is_former: bool = False
    """PostgreSQL: from before `pg_upgrade`, as the user says."""

    @property
    def end(self) -> Mark:
        return self.window or self.done


@dataclass(frozen=True, slots=True)
class Form:
    """What positions of one table have in common, and are refused without."""

    by: tuple[str, ...]
    """The columns of the order."""
    system: str | None = None
    """Which PostgreSQL: transactions are numbered by each server for itself."""
    former: str | None = None
    """The same one before `pg_upgrade`, which keeps the numbers."""

    def to_json(self, position: Position) -> dict[str, Any]:
        fields: dict[str, Any] = {"by": list(self.by)}
        if self.system is not None:
            fields["system"] = self.former if position.is_former else self.system
        fields |= self._mark(position.done)
        if position.window is not None:
            assert position.after is not None
            fields["window"] = self._mark(position.window) | {"after": list(position.after)}
        if position.is_start:
            fields["start"] = True
        return fields

    def from_json(self, fields: Mapping[str, Any]) -> Position:
        self._check(fields)
        window = fields.get("window")
        return Position(
            done=_read_mark(fields),
            window=None if window is None else _read_mark(window),
            after=None if window is None else _place(window["after"]),
            is_start=fields.get("start", False),
            is_former=fields.get("system") != self.system,
        )

    def _mark(self, mark: Mark) -> dict[str, Any]:
        place = {"upto": None if mark.upto is None else list(mark.upto)}
        if self.system is None:
            return place
        children = {} if mark.children is None else {"children": mark.children}
        return {"xid": mark.xid, **place, **children}

    def _check(self, fields: Mapping[str, Any]) -> None:
        if fields.get("by") != list(self.by):
            raise PositionError(
                f"the checkpoint's position is by {fields.get('by')}, the options say "
                f"{list(self.by)}: set keyColumn and updateColumn as they were, or start anew with "
                "another checkpointLocation"
            )
        system = fields.get("system")
        if system != self.system and (system is None or system != self.former):
            raise PositionError(
                f"the checkpoint's position is of the PostgreSQL with the system identifier "
                f"{system}, and this is {self.system}: transactions are numbered "
                "differently there. Go back to the former server (or a replica of it), or start "
                "anew with another checkpointLocation. Only pg_upgrade keeps the numbers: if it "
                f"made this server of the former one, set formerSystemIdentifier={system}"
            )


def started(position: Position) -> Position:
    return replace(position, is_start=False)


def _read_mark(fields: Mapping[str, Any]) -> Mark:
    upto = fields["upto"]
    place = None if upto is None else _place(upto)
    return Mark(place, fields.get("xid", 0), fields.get("children"))


def _place(values: Sequence[Scalar]) -> Place:
    return tuple(values)
