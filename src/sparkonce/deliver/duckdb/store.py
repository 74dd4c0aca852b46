"""A table in a file of DuckDB, in the driver: prepared, taken over, and its stages.

The stage of an attempt is a folder of Parquet files, beside the database's own unless another place
is named; on a cluster it must be one that executors and driver share.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import duckdb

from sparkonce.deliver import row, sql
from sparkonce.deliver.columns import BAD, DELETED, ROW, SEQUENCE, Columns
from sparkonce.deliver.duckdb.facts import TableFacts
from sparkonce.deliver.duckdb.file import File, Opened
from sparkonce.deliver.duckdb.statements import statements
from sparkonce.deliver.duckdb.transaction import DuckDBTransaction, full_name, move_from
from sparkonce.deliver.duckdb.types import type_of
from sparkonce.deliver.folder import remove
from sparkonce.deliver.parquet import ParquetStage
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import Held, StoreError
from sparkonce.deliver.target import TableTarget
from sparkonce.errors import ConfigError
from sparkonce.redaction import keep_secrets_of

_PREFIX: Final = "duckdb."
_URL: Final = re.compile("(?!file:)[A-Za-z][A-Za-z0-9+.-]+:")
"""What DuckDB would open as something else than a file: md:, postgres:, s3://."""


def target(options: Mapping[str, str], query_name: str | None) -> TableTarget:
    settings = TableSettings.parse(
        options, query_name, place="path", own=("stagingLocation",), prefix=_PREFIX
    )
    if _URL.match(settings.place):
        raise ConfigError(
            "path is the file of the database, and this one looks like a URL (it is not shown, as "
            "there may be a password in it): write ./ before the name if it is a file"
        )
    return TableTarget(settings, type_of, DuckDBStore)


class DuckDBStore:
    def __init__(self, settings: TableSettings, columns: Columns) -> None:
        self._settings = settings
        self._columns = columns
        given = {
            name.removeprefix(_PREFIX): value
            for name, value in settings.more.items()
            if name.startswith(_PREFIX)
        }
        keep_secrets_of(given)
        self._file = File(settings.place, given)
        self._staging = Path(settings.more.get("stagingLocation") or self._file.beside).absolute()
        self._mark = hashlib.sha256(settings.group.encode()).hexdigest()[:12]

    # -- before the query starts ---------------------------------------------------------------

    def prepare(self) -> None:
        settings = self._settings
        with self._file.open() as connection:
            try:
                ledger = full_name(settings.ledger_table)
                connection.execute(sql.create_ledger(ledger))
                connection.execute(sql.add_to_ledger(ledger))
                if settings.dead_letter_table:
                    dead = full_name(settings.dead_letter_table)
                    connection.execute(sql.create_dead_letters(dead))
                if settings.creates:
                    types = [type_of(field.dataType) for field in self._columns.table]
                    table = full_name(settings.table)
                    connection.execute(sql.create_table(table, self._columns, types))
            except duckdb.Error as error:
                raise ConfigError(f"the tables could not be created: {error}") from error
            self._add_columns(connection)
            self._check_fit(connection)

    def _add_columns(self, connection: Opened) -> None:
        settings = self._settings
        there = TableFacts.read(connection, settings.table, self._columns).types
        known = {name.lower() for name in there}  # to DuckDB they are the same in any case
        missing = [each for each in self._columns.table if each.name.lower() not in known]
        if not there or not missing:
            return  # the table may be missing as a whole
        if not settings.merges_schema:
            raise ConfigError(
                f"dbtable {settings.table!r} has no column "
                f"{', '.join(each.name for each in missing)}. Rename or drop the column before "
                'writing, or let it be added by .option("mergeSchema", "true")'
            )
        for each in missing:
            column = f"{sql.quoted(each.name)} {type_of(each.dataType)}"
            try:
                connection.execute(f"ALTER TABLE {full_name(settings.table)} ADD COLUMN {column}")
            except duckdb.Error as error:
                raise ConfigError(f"column {each.name!r} could not be added: {error}") from error

    def _check_fit(self, connection: Opened) -> None:
        """Ask the database itself whether it would take such rows."""
        types = {field.name: type_of(field.dataType) for field in self._columns.table}
        beside = {
            DELETED: "BOOLEAN",
            SEQUENCE: types.get(str(self._columns.sequence_by), ""),
            BAD: "VARCHAR",
            ROW: "VARCHAR",
        }
        staged = {**types, **{name: beside[name] for name in self._columns.beside}}
        values = ", ".join(
            f"CAST(NULL AS {kind}) AS {sql.quoted(name)}" for name, kind in staged.items()
        )
        try:
            facts = TableFacts.read(connection, self._settings.table, self._columns)
            move = move_from(self._settings, self._columns, f"(SELECT {values})", facts)
            for statement in statements(move):
                connection.execute(f"EXPLAIN {statement}")
        except duckdb.CatalogException as error:
            raise ConfigError(
                f"dbtable {self._settings.table!r} is not there ({error}): create it, or let it be "
                'created by .option("createTable", "true")'
            ) from error
        except duckdb.Error as error:
            raise ConfigError(
                f"dbtable {self._settings.table!r} does not take such rows: {error}. Cast, rename "
                "or drop the column, or change the table"
                + (
                    " (keyColumns must be its primary key or unique)"
                    if self._settings.upserts
                    else ""
                )
            ) from error

    def take_over(self) -> Held:
        with self._file.open() as connection:
            raised = connection.execute(
                f"INSERT INTO {self._ledger} (pipeline, epoch) VALUES (?, 1) "
                f"ON CONFLICT (pipeline) DO UPDATE SET epoch = {self._ledger}.epoch + 1 "
                f"RETURNING {row.READ}",
                [self._settings.group],
            ).fetchone()
        if raised is None:
            raise StoreError("the ledger gave no answer: this is a mistake of sparkonce's")
        for folder in self._staging.glob(f"{self._mark}_*"):
            remove(folder)
        return row.from_row(raised)

    def holder(self) -> Held:
        with self._file.open() as connection:
            try:
                found = connection.execute(
                    f"SELECT {row.READ} FROM {self._ledger} WHERE pipeline = ?",
                    [self._settings.group],
                ).fetchone()
            except duckdb.Error as error:
                raise StoreError(f"the ledger can't be read: {error}") from error
        return row.from_row(found) if found else Held(0, None, None)

    # -- the steps -----------------------------------------------------------------------------

    def stage(self, epoch: int, attempt: int) -> ParquetStage:
        folder = self._folder(epoch, attempt)
        folder.mkdir(parents=True)
        return ParquetStage(str(folder))

    def begin(self, epoch: int) -> DuckDBTransaction:
        transaction = DuckDBTransaction(self._file.open(), self._settings, self._columns)
        transaction.begin(epoch)
        return transaction

    def discard(self, epoch: int, attempt: int) -> None:
        remove(self._folder(epoch, attempt))

    def close(self) -> None:
        if self._staging.exists() and not any(self._staging.iterdir()):
            self._staging.rmdir()

    # -- on the way ----------------------------------------------------------------------------

    def _folder(self, epoch: int, attempt: int) -> Path:
        return self._staging / f"{self._mark}_{epoch}_{attempt}"

    @property
    def _ledger(self) -> str:
        return full_name(self._settings.ledger_table)
