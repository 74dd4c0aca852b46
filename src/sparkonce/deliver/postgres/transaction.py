"""One transaction of PostgreSQL: the ledger's row is locked from its beginning to its end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import psycopg

from sparkonce.deliver import row
from sparkonce.deliver.postgres.bad_rows import check_keys, set_aside, tells_of_a_row
from sparkonce.deliver.postgres.connection import begin, explained
from sparkonce.deliver.postgres.layout import Layout
from sparkonce.deliver.postgres.stages import Stages, remove
from sparkonce.deliver.postgres.statements import PostgresMove
from sparkonce.deliver.store import Loaded, Part, RowsRefused, Sources, StoreError
from sparkonce.errors import FencedError, OutcomeUnknown
from sparkonce.guarantees import Guarantee
from sparkonce.postgresql import Connection, commit, message
from sparkonce.stream.ledger import Entry

_DEADLOCKS_MAX: Final = 5
_log = logging.getLogger("sparkonce.deliver")


class PostgresTransaction:
    def __init__(
        self, connection: Connection, layout: Layout, stages: Stages, timeout: str
    ) -> None:
        self._connection = connection
        self._layout = layout
        self._stages = stages
        self._timeout = timeout
        self._parts: list[Part] = []

    def begin(self, epoch: int) -> None:
        settings = self._layout.settings
        waits = settings.guarantee is not Guarantee.NONE
        try:
            begin(self._connection, self._timeout, waits=waits)
            # What is checked at the end only would be refused when nothing can be put aside.
            self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            found = self._connection.execute(
                f"SELECT epoch FROM {self._layout.ledger_beside_values} "
                "WHERE pipeline = %s FOR UPDATE",
                (settings.group,),
            ).fetchone()
        except psycopg.Error as error:
            self.rollback()
            raise StoreError(f"no transaction could be begun: {explained(error)}") from error
        if found is None or found[0] != epoch:
            self.rollback()
            now = f"is at epoch {found[0]}" if found else "has no row of it any more"
            raise FencedError(f"epoch {epoch} of {settings.group!r} is over: the ledger {now}")

    def load(self, parts: Sequence[Part]) -> Loaded:
        if not parts:
            return Loaded(0)
        try:
            loaded = self._load_after_others(parts)
            remove(self._connection, self._layout, list(parts))
            self._parts += parts
            return loaded
        except psycopg.Error as error:
            raise self._refusal(error) from error

    def _refusal(self, error: psycopg.Error) -> StoreError | RowsRefused:
        table = self._layout.settings.table
        if isinstance(error, psycopg.errors.CardinalityViolation):
            return RowsRefused(
                f"rows of this batch have keys that differ, and that are the same to the table "
                f"{table!r}: {message(error)}. Write them in one way before writing"
            )
        if tells_of_a_row(error, self._layout.facts):
            return RowsRefused(
                f"table {table!r} refuses rows of this batch: {message(error)}. Mend them before "
                "writing, or set deadLetterTable to put such rows aside"
            )
        return StoreError(f"the batch could not be loaded: {explained(error)}")

    def _load_after_others(self, parts: Sequence[Part]) -> Loaded:
        """Keys are locked in order where there are any. Rows that are appended, and those that are
        tried in pieces, have none: two that write the same unique values lock each other out. The
        server ends one of them; it lets go of its locks, and tries again."""
        for _ in range(_DEADLOCKS_MAX):
            try:
                with self._connection.transaction():
                    return self._load(parts)
            except psycopg.errors.DeadlockDetected as error:
                _log.info("%s: tried again: %s", self._layout.settings.table, message(error))
        return self._load(parts)

    def _load(self, parts: Sequence[Part]) -> Loaded:
        move = self._layout.move(parts)
        dead, expected = self._layout.dead_letters, sum(part.records for part in parts)
        if not move.upserts and dead is None:
            # All that is staged goes in, so what went in was there, and need not be counted first;
            # it may be less where a trigger of the table's keeps rows out.
            if self._connection.execute(move.write()).rowcount != expected:
                self._check_staged(move, expected)
            return Loaded(expected)
        self._check_staged(move, expected)
        if dead is None:
            self._write(move)
            return Loaded(expected)
        try:
            with self._connection.transaction():
                self._write(move)
        except psycopg.Error as error:
            if not tells_of_a_row(error, self._layout.facts):
                raise
            set_aside(self._connection, move, self._layout.facts)
        marked = move.dead_letters(dead, self._layout.settings.pipeline)
        aside = self._connection.execute(marked).rowcount if marked else 0
        return Loaded(expected - aside, aside)

    def _write(self, move: PostgresMove) -> None:
        check_keys(self._connection, move)
        if (lock := move.lock()) is not None:
            self._connection.execute(lock)
        self._connection.execute(move.write())

    def _check_staged(self, move: PostgresMove, expected: int) -> None:
        counted = self._connection.execute(f"SELECT count(*) FROM {move.staged} AS s").fetchone()
        found = counted[0] if counted else 0
        if found != expected:
            raise StoreError(
                f"{expected} rows were staged and {found} are there: the server has crashed since, "
                "which empties unlogged tables"
            )

    def note(self, entry: Entry, sources: Sources) -> None:
        values = row.to_row(entry, sources)
        sets = ", ".join(f"{name} = %({name})s" for name in values)
        try:
            noted = self._connection.execute(
                f"UPDATE {self._layout.ledger_beside_values} SET {sets} "
                f"WHERE {row.older('%(number)s')} AND pipeline = %(pipeline)s",
                {**values, "pipeline": self._layout.settings.group},
            ).rowcount
        except psycopg.Error as error:
            raise StoreError(f"the batch could not be recorded: {message(error)}") from error
        row.check_noted(noted, entry)

    def commit(self) -> None:
        try:
            answer = commit(self._connection)
        except psycopg.OperationalError as error:
            self._connection.close()
            raise OutcomeUnknown(f"no answer to COMMIT: {message(error)}") from error
        except psycopg.Error as error:
            raise StoreError(f"the commit was refused: {message(error)}") from error
        if answer != "COMMIT":  # of a transaction in which something had failed
            raise StoreError(f"the server answered {answer} to COMMIT: nothing was written")
        if self._parts:
            self._stages.loaded(self._parts)

    def rollback(self) -> None:
        with suppress(psycopg.Error):  # a connection that has gone takes its transaction with it
            self._connection.execute("ROLLBACK")
            return
        self._connection.close()
