"""The pipeline's staging tables, in the driver: made once, and used again for every batch.

There is one for each attempt that is under way at a time; several only under `none`. A table that
is made and dropped for every batch would be in the way of `pg_dump`, which stops at a table that
has gone since it began, and which keeps its locks to its end. So nothing is made or dropped as long
as all goes well, and nothing here waits for a lock: a table that somebody else holds is left as it
is, and if it grows meanwhile, another one is taken.

Only who has the ledger's row under his own epoch empties or drops: a zombie would do it to its
successor.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from secrets import randbits
from typing import Final

import psycopg

from sparkonce.deliver.columns import TASK
from sparkonce.deliver.postgres.connection import transaction
from sparkonce.deliver.postgres.layout import Layout
from sparkonce.deliver.postgres.stage import ATTEMPT_BITS, attempt_of, numbers_of, staged_by
from sparkonce.deliver.sql import quoted
from sparkonce.deliver.store import Part
from sparkonce.postgresql import Connection, message

_LARGE_BYTES: Final = 8 * 2**20
"""From here on it is cheaper to empty a table than to delete its rows one by one."""
_FULL_BYTES: Final = 64 * 2**20
"""Of rows that are needed no more, and that nobody could remove."""
_LASTING: Final = 5
"""As many as `none` uses at once. Those beyond are dropped again."""
_log = logging.getLogger("sparkonce.deliver")


@dataclass(slots=True)
class Taken:
    slot: int
    name: str
    attempt: int
    """A number that no other attempt has, whoever's it is."""
    is_empty: bool = False


class Stages:
    def __init__(self, layout: Layout, timeout: str) -> None:
        self._layout = layout
        self._timeout = timeout
        self._taken: dict[tuple[int, int], Taken] = {}

    def create(self, connection: Connection, slot: int) -> None:
        """Unless it is there."""
        name = self._layout.stage_name(slot)
        asked = "SELECT to_regclass(%s) IS NOT NULL"
        if connection.execute(asked, (self._layout.staged(name),)).fetchone() == (True,):
            return
        for statement in self._layout.create_stage(name):
            connection.execute(statement)

    # -- one attempt ---------------------------------------------------------------------------

    def take(self, connection: Connection, epoch: int, attempt: int) -> Taken:
        """A table that no other attempt of this driver has."""
        sizes = self._sizes(connection)
        # A slot that has no table is always free, and one of these has none.
        slots = range(len(sizes) + len(self._taken) + 1)
        slot = next(each for each in slots if self._is_free(connection, epoch, each, sizes))
        if slot not in sizes:
            with transaction(connection, self._timeout):
                self.create(connection, slot)
        for surplus in sizes:
            if surplus >= _LASTING and surplus not in {slot, *self._slots_taken()}:
                self._alone(connection, epoch, self._layout.stage_name(surplus), "DROP TABLE")
        taken = Taken(slot, self._layout.stage_name(slot), randbits(ATTEMPT_BITS))
        self._taken[(epoch, attempt)] = taken
        return taken

    def loaded(self, parts: list[Part]) -> None:
        """Committed, without what was staged for it."""
        name, numbers = staged_by([part.name for part in parts])
        for taken in [*self._taken.values()]:
            if (taken.name, taken.attempt) == (name, attempt_of(numbers[0])):
                taken.is_empty = True

    def give_back(self, epoch: int, attempt: int) -> str | None:
        """What is to be executed to remove what the attempt has staged, if that is still there."""
        taken = self._taken.pop((epoch, attempt), None)
        if taken is None or taken.is_empty:
            return None
        return _delete(self._layout, taken.name, taken.attempt)

    # -- all of them ---------------------------------------------------------------------------

    def clear(self, connection: Connection) -> None:
        """In the transaction that takes over: what a former driver has left."""
        ours = {self._layout.stage_name(slot) for slot in range(_LASTING)}
        for name, size in self._owned(connection):
            try:
                with connection.transaction():
                    if name not in ours:
                        _at_once(connection, "DROP TABLE", self._layout.staged(name))
                    elif size:
                        _at_once(connection, "TRUNCATE", self._layout.staged(name))
            except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                _log.info("%s is in use by somebody else, and stays as it is for now", name)

    def drop(self, connection: Connection, epoch: int) -> None:
        """Of a batch job, whose name nobody will use again."""
        for name, _ in self._owned(connection):
            if not self._alone(connection, epoch, name, "DROP TABLE"):
                _log.warning("the staging table %s is in use: drop it later", name)

    # -- on the way ----------------------------------------------------------------------------

    def _is_free(
        self, connection: Connection, epoch: int, slot: int, sizes: dict[int, int]
    ) -> bool:
        if slot in self._slots_taken():
            return False
        is_full = sizes.get(slot, 0) > _FULL_BYTES
        name = self._layout.stage_name(slot)
        return not is_full or self._alone(connection, epoch, name, "TRUNCATE")

    def _slots_taken(self) -> set[int]:
        return {each.slot for each in [*self._taken.values()]}

    def _sizes(self, connection: Connection) -> dict[int, int]:
        """Of all tables that are there for this DataFrame, by their slots; a former driver may
        have left any number of them. One that is dropped meanwhile has no size."""
        prefix = self._layout.stage_prefix
        found = connection.execute(
            f"SELECT substr(relname, {len(prefix) + 1})::int, "
            f"{self._in_time('pg_table_size(oid)')} FROM pg_class "
            "WHERE relnamespace = to_regnamespace(%s) AND relname ~ %s",
            (quoted(self._layout.staging_schema), f"^{prefix}[0-9]{{1,9}}$"),
        )
        return {slot: size for slot, size in found.fetchall() if size is not None}

    def _owned(self, connection: Connection) -> list[tuple[str, int]]:
        """Those of the pipeline, and their bytes; only the owner may empty one."""
        found = connection.execute(
            f"SELECT relname, {self._in_time('pg_relation_size(oid)')} FROM pg_class "
            "WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r' "
            "AND starts_with(relname, %s) AND pg_has_role(relowner, 'USAGE')",
            (quoted(self._layout.staging_schema), f"{self._layout.mark}_"),
        )
        return found.fetchall()

    def _in_time(self, size: str) -> str:
        """To ask for a table's size is to wait for its lock."""
        limit = f"set_config('lock_timeout', '{self._timeout}', true)"
        return f"CASE WHEN {limit} IS NOT NULL THEN {size} END"

    def _alone(self, connection: Connection, epoch: int, name: str, verb: str) -> bool:
        """False if somebody else has the table, or the pipeline."""
        try:
            with transaction(connection, self._timeout):
                held = connection.execute(
                    f"SELECT epoch FROM {self._layout.ledger_beside_values} "
                    "WHERE pipeline = %s FOR UPDATE",
                    (self._layout.settings.group,),
                ).fetchone()
                if held != (epoch,):
                    return False
                _at_once(connection, verb, self._layout.staged(name))
            return True
        except psycopg.errors.LockNotAvailable as error:
            _log.info("%s stays as it is for now: %s", name, message(error))
            return False


def remove(connection: Connection, layout: Layout, parts: list[Part]) -> None:
    """In the transaction that has loaded them, which has the ledger's row: what was staged for the
    attempt, by tasks that count and by others."""
    name, numbers = staged_by([part.name for part in parts])
    stage = layout.staged(name)
    sized = connection.execute("SELECT pg_table_size(%s::regclass)", (stage,)).fetchone()
    if sized and sized[0] > _LARGE_BYTES:
        with suppress(psycopg.errors.LockNotAvailable), connection.transaction():
            _at_once(connection, "TRUNCATE", stage)
            return
    connection.execute(_delete(layout, name, attempt_of(numbers[0])))


def _delete(layout: Layout, name: str, attempt: int) -> str:
    first, last = numbers_of(attempt)
    return f"DELETE FROM {layout.staged(name)} WHERE {TASK} BETWEEN {first} AND {last}"


def _at_once(connection: Connection, verb: str, table: str) -> None:
    connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE NOWAIT")
    connection.execute(f"{verb} {table}")
