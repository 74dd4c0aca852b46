"""One transaction of PostgreSQL: the ledger's row is locked from its beginning to its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import psycopg

from sparkonce.deliver import row
from sparkonce.deliver.postgres.bad_rows import insert_or_set_aside
from sparkonce.deliver.postgres.layout import Layout
from sparkonce.deliver.sql import Move
from sparkonce.deliver.store import Loaded, Part, RowsRefused, Sources, StoreError
from sparkonce.errors import FencedError, OutcomeUnknown
from sparkonce.guarantees import Guarantee
from sparkonce.postgresql import Connection, message
from sparkonce.stream.ledger import Entry

_WAIT = (
    "SELECT set_config('synchronous_commit', 'on', true) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)


class PostgresTransaction:
    def __init__(self, connection: Connection, layout: Layout) -> None:
        self._connection = connection
        self._layout = layout

    def begin(self, epoch: int) -> None:
        settings = self._layout.settings
        waits = settings.guarantee is not Guarantee.NONE
        try:
            self._connection.execute("BEGIN")
            # A server that waits for more than its own disk is left as it is.
            self._connection.execute(_WAIT if waits else "SET LOCAL synchronous_commit = off")
            # What is checked at the end only would be refused when nothing can be put aside.
            self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            found = self._connection.execute(
                f"SELECT epoch FROM {self._layout.ledger} WHERE pipeline = %s FOR UPDATE",
                (settings.group,),
            ).fetchone()
        except psycopg.Error as error:
            self.rollback()
            raise StoreError(f"no transaction could be begun: {message(error)}") from error
        if found is None or found[0] != epoch:
            self.rollback()
            now = f"is at epoch {found[0]}" if found else "has no row of it any more"
            raise FencedError(f"epoch {epoch} of {settings.group!r} is over: the ledger {now}")

    def load(self, parts: Sequence[Part]) -> Loaded:
        if not parts:
            return Loaded(0)
        try:
            return self._load(parts)
        except (psycopg.IntegrityError, psycopg.DataError) as error:
            raise RowsRefused(
                f"table {self._layout.settings.table!r} refuses rows of this batch: "
                f"{message(error)}. Mend them before writing, or set deadLetterTable to put such "
                "rows aside"
            ) from error
        except psycopg.Error as error:
            raise StoreError(f"the batch could not be loaded: {message(error)}") from error

    def _load(self, parts: Sequence[Part]) -> Loaded:
        move, settings = self._layout.move(parts), self._layout.settings
        dead, expected = self._layout.dead_letters, sum(part.records for part in parts)
        if not move.upserts and dead is None:
            # All that is staged goes in, so what went in was there, and need not be counted first;
            # it may be less where a trigger of the table's keeps rows out.
            if self._connection.execute(move.insert()).rowcount != expected:
                self._check_staged(move, expected)
            return Loaded(expected)
        self._check_staged(move, expected)
        if (several := move.several()) and (key := self._connection.execute(several).fetchone()):
            raise RowsRefused(
                f"there are several rows with the key {key} in one batch, and nothing says which "
                "is the newest: set sequenceBy, a column that grows"
            )
        if (delete := move.delete()) is not None:
            self._connection.execute(delete)
        if dead is None:
            self._connection.execute(move.insert())
            return Loaded(expected)
        marked = move.dead_letters(dead, settings.pipeline)
        aside = self._connection.execute(marked).rowcount if marked else 0
        aside += insert_or_set_aside(self._connection, move, dead, settings.pipeline)
        return Loaded(expected - aside, aside)

    def _check_staged(self, move: Move, expected: int) -> None:
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
                f"UPDATE {self._layout.ledger} SET {sets} "
                f"WHERE {row.older('%(number)s')} AND pipeline = %(pipeline)s",
                {**values, "pipeline": self._layout.settings.group},
            ).rowcount
        except psycopg.Error as error:
            raise StoreError(f"the batch could not be recorded: {message(error)}") from error
        row.check_noted(noted, entry)

    def commit(self) -> None:
        try:
            answer = self._connection.execute("COMMIT").statusmessage
        except psycopg.OperationalError as error:
            self._connection.close()
            raise OutcomeUnknown(f"no answer to COMMIT: {message(error)}") from error
        except psycopg.Error as error:
            raise StoreError(f"the commit was refused: {message(error)}") from error
        if answer != "COMMIT":  # of a transaction in which something had failed
            raise StoreError(f"the server answered {answer} to COMMIT: nothing was written")

    def rollback(self) -> None:
        with suppress(psycopg.Error):  # a connection that has gone takes its transaction with it
            self._connection.execute("ROLLBACK")
            return
        self._connection.close()
