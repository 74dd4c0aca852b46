"""One transaction of DuckDB, on a connection of its own that ends with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import duckdb

from sparkonce.deliver import row
from sparkonce.deliver.columns import Columns
from sparkonce.deliver.duckdb.bad_rows import refused, set_aside
from sparkonce.deliver.duckdb.facts import REFUSALS, TableFacts
from sparkonce.deliver.duckdb.file import Opened
from sparkonce.deliver.duckdb.statements import statements
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.sql import Move, parquet, quoted, table_name
from sparkonce.deliver.store import Loaded, Part, RowsRefused, Sources, StoreError
from sparkonce.errors import FencedError, OutcomeUnknown
from sparkonce.stream.ledger import Entry


def full_name(text: str) -> str:
    return ".".join(quoted(part) for part in table_name(text))


def move_from(settings: TableSettings, columns: Columns, staged: str, facts: TableFacts) -> Move:
    return Move(
        full_name(settings.table),
        columns,
        staged,
        {},
        upserts=settings.upserts,
        key_casts=facts.key_casts(columns),
    )


class DuckDBTransaction:
    def __init__(self, connection: Opened, settings: TableSettings, columns: Columns) -> None:
        self._connection = connection
        self._settings = settings
        self._columns = columns

    def begin(self, epoch: int) -> None:
        try:
            self._connection.execute("BEGIN")
            found = self._connection.execute(
                f"SELECT epoch FROM {full_name(self._settings.ledger_table)} WHERE pipeline = ?",
                [self._settings.group],
            ).fetchone()
        except duckdb.Error as error:
            self.rollback()
            raise StoreError(f"no transaction could be begun: {error}") from error
        if found is None or found[0] != epoch:
            self.rollback()
            now = f"is at epoch {found[0]}" if found else "has no row of it any more"
            raise FencedError(
                f"epoch {epoch} of {self._settings.group!r} is over: the ledger {now}"
            )

    def load(self, parts: Sequence[Part]) -> Loaded:
        if not parts:
            return Loaded(0)
        staged = parquet(part.name for part in parts)
        try:
            facts = TableFacts.read(self._connection, self._settings.table, self._columns)
            move = move_from(self._settings, self._columns, staged, facts)
            return self._load(move, facts, sum(part.records for part in parts))
        except REFUSALS as error:
            raise RowsRefused(
                f"table {self._settings.table!r} refuses rows of this batch: {error}. Mend them "
                "before writing, or set deadLetterTable to put such rows aside"
            ) from error
        except duckdb.IOException as error:
            raise StoreError(
                f"what was staged can't be read: {error}. If executors are on other machines, set "
                "stagingLocation to a folder that they and the driver share"
            ) from error
        except duckdb.Error as error:
            raise StoreError(f"the batch could not be loaded: {error}") from error

    def _load(self, move: Move, facts: TableFacts, expected: int) -> Loaded:
        (there,) = self._connection.execute(f"SELECT count(*) FROM {move.staged}").fetchone() or (
            0,
        )
        if there != expected:
            raise StoreError(f"{expected} rows were staged and {there} are there")
        if self._settings.dead_letter_table is None:
            self._insert(move)
            return Loaded(expected)
        dead, pipeline = full_name(self._settings.dead_letter_table), self._settings.pipeline
        statements = [move.dead_letters(dead, pipeline)]
        try:
            self._insert(move)
        except REFUSALS:
            self._connection.execute("ROLLBACK")
            statements.append(refused(move, facts, pipeline, dead))
            good = set_aside(self._connection, move, facts)
            # Nobody came between: the file is this process's until the connection is closed.
            self._connection.execute("BEGIN")
            self._insert(good)
        aside = sum(self._count(statement) for statement in statements if statement)
        return Loaded(expected - aside, aside)

    def _insert(self, move: Move) -> None:
        if (several := move.several()) and (key := self._connection.execute(several).fetchone()):
            raise RowsRefused(
                f"there are several rows with the key {key} in one batch, and nothing says which "
                "is the newest: set sequenceBy, a column that grows"
            )
        for statement in statements(move):
            self._connection.execute(statement)

    def _count(self, statement: str) -> int:
        counted = self._connection.execute(statement).fetchone()
        return int(counted[0]) if counted else 0

    def note(self, entry: Entry, sources: Sources) -> None:
        values = row.to_row(entry, sources)
        sets = ", ".join(f"{name} = ${name}" for name in values)
        try:
            noted = self._connection.execute(
                f"UPDATE {full_name(self._settings.ledger_table)} SET {sets} "
                f"WHERE {row.older('$number')} AND pipeline = $pipeline",
                {**values, "pipeline": self._settings.group},
            ).fetchone()
        except duckdb.Error as error:
            raise StoreError(f"the batch could not be recorded: {error}") from error
        row.check_noted(noted[0] if noted else 0, entry)

    def commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except duckdb.TransactionException as error:
            self.rollback()
            raise StoreError(f"the commit was refused: {error}") from error
        except duckdb.Error as error:
            self.rollback()
            raise OutcomeUnknown(f"the commit failed on its way: {error}") from error
        self._connection.close()

    def rollback(self) -> None:
        with suppress(duckdb.Error):  # it may be over already; closing it ends it in any case
            self._connection.execute("ROLLBACK")
        self._connection.close()
