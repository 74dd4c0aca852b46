"""A table of PostgreSQL, in the driver: prepared, taken over, and its stages.

The stage is an unlogged table of the attempt: cheap, and emptied when the server crashes, so rows
are counted when they are moved. Whoever takes over waits for the ledger's row, so a commit that is
under way ends first, and its outcome is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import psycopg

from sparkonce.deliver import row, sql
from sparkonce.deliver.columns import Columns
from sparkonce.deliver.postgres.connection import Driver, as_url, conninfo, told_as_ours
from sparkonce.deliver.postgres.layout import Layout
from sparkonce.deliver.postgres.stage import PostgresStage
from sparkonce.deliver.postgres.transaction import PostgresTransaction
from sparkonce.deliver.postgres.types import staged_type_of, type_of
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import Held, StoreError
from sparkonce.deliver.target import TableTarget
from sparkonce.errors import ConfigError
from sparkonce.postgresql import Connection, message

_VERSION_MIN: Final = 150_000


def target(options: Mapping[str, str], query_name: str | None) -> TableTarget:
    settings = TableSettings.parse(options, query_name, place="url", own=("user", "password"))
    return TableTarget(settings, type_of, PostgresStore, nested_as_json=True)


class PostgresStore:
    def __init__(self, settings: TableSettings, columns: Columns) -> None:
        self._info = conninfo(settings)
        self._layout = Layout(settings, columns, schema="")
        self._driver = Driver(self._info, f"{self._layout.mark}_driver")
        # Of its own: what is made or dropped beside a transaction must not become a part of it.
        self._writer = Driver(self._info, f"{self._layout.mark}_writer")

    # -- before the query starts ---------------------------------------------------------------

    def prepare(self) -> None:
        connection = self._driver.connection()
        if connection.info.server_version < _VERSION_MIN:
            raise ConfigError(
                f"the server is PostgreSQL {connection.info.server_version // 10_000}: 15 or newer "
                "is needed"
            )
        self._layout = replace(self._layout, schema=self._schema(connection))
        try:
            self._create(connection)
        except psycopg.Error as error:
            raise ConfigError(f"the tables could not be created: {message(error)}") from error
        self._layout = replace(self._layout, casts=self._casts(connection))
        self._check_fit(connection)

    def _schema(self, connection: Connection) -> str:
        *given, _ = sql.table_name(self._layout.settings.table, str.lower)
        if len(given) > 1:
            raise ConfigError("dbtable is schema.table; which database is said in the option url")
        here = connection.execute("SELECT current_schema()").fetchone()
        schema = given[0] if given else here and here[0]
        if schema is None:
            raise ConfigError("there is no schema to be in: write dbtable as schema.table")
        return str(schema)

    def _create(self, connection: Connection) -> None:
        with connection.transaction():
            # One at a time: IF NOT EXISTS is no promise to two who create at once.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('sparkonce'))")
            connection.execute(sql.create_ledger(self._layout.ledger))
            if not self._names_state(connection):
                connection.execute(sql.add_to_ledger(self._layout.ledger))
            if dead := self._layout.dead_letters:
                connection.execute(sql.create_dead_letters(dead))
            if self._layout.settings.creates:
                connection.execute(self._layout.create_table())

    def _names_state(self, connection: Connection) -> bool:
        """Asked first, as adding a column waits for whoever reads, even if it is there."""
        found = connection.execute(
            "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'state' "
            "AND NOT attisdropped",
            (self._layout.ledger,),
        )
        return found.fetchone() is not None

    def _casts(self, connection: Connection) -> dict[str, str]:
        layout = self._layout
        found = connection.execute(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typcategory "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped",
            (layout.table,),
        ).fetchall()
        if not found:
            raise ConfigError(
                f"dbtable {layout.settings.table!r} is not there: create it, or let it be created "
                'by .option("createTable", "true")'
            )
        types = {name: (kind, category) for name, kind, category in found}
        missing = [name for name in layout.columns.names if name not in types]
        if missing:
            raise ConfigError(
                f"dbtable {layout.settings.table!r} has no column {', '.join(missing)}; it has "
                f"{', '.join(types)}. Rename or drop the column before writing"
            )
        return {
            each.name: types[each.name][0]
            for each in layout.columns.table
            # S: the table's column is text of some kind itself.
            if staged_type_of(each.dataType) == "text" and types[each.name][1] != "S"
        }

    def _check_fit(self, connection: Connection) -> None:
        """Ask the server itself whether it would take such rows."""
        stage = "pg_temp.sparkonce_fit"
        move = self._layout.move_from(stage)
        try:
            with connection.transaction(force_rollback=True):
                connection.execute(self._layout.create_stage(stage, ""))
                for statement in (move.delete(), move.insert()):
                    if statement is not None:
                        connection.execute(f"EXPLAIN {statement}")
        except psycopg.Error as error:
            raise ConfigError(
                f"dbtable {self._layout.settings.table!r} does not take such rows: "
                f"{message(error)}. Cast the column, or change the table"
                + (" (keyColumns must be its primary key or unique)" if move.upserts else "")
            ) from error

    def take_over(self) -> Held:
        connection = self._driver.connection()
        with told_as_ours("the pipeline can't be taken over"):
            # Whoever was paused in mid-transaction would hold the row for ever: he is shown out.
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND starts_with(application_name, %s) "
                "AND pid <> pg_backend_pid()",
                (self._layout.mark,),
            )
            raised = connection.execute(
                f"INSERT INTO {self._layout.ledger} AS l (pipeline, epoch) VALUES (%s, 1) "
                f"ON CONFLICT (pipeline) DO UPDATE SET epoch = l.epoch + 1 RETURNING {row.READ}",
                (self._layout.settings.group,),
            ).fetchone()
            self._drop_stages(connection)
        if raised is None:
            raise StoreError("the ledger gave no answer: this is a mistake of sparkonce's")
        return row.from_row(raised)

    def _drop_stages(self, connection: Connection) -> None:
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) "
            "AND relkind = 'r' AND starts_with(relname, %s)",
            (sql.quoted(self._layout.schema), f"{self._layout.mark}_"),
        ).fetchall()
        for (name,) in found:
            connection.execute(f"DROP TABLE IF EXISTS {self._layout.in_schema(name)}")

    def holder(self) -> Held:
        """The row is locked for a moment: a commit that is under way ends first."""
        connection = self._driver.connection()
        with told_as_ours("the ledger can't be read"):
            found = connection.execute(
                f"SELECT {row.READ} FROM {self._layout.ledger} WHERE pipeline = %s FOR UPDATE",
                (self._layout.settings.group,),
            ).fetchone()
        return row.from_row(found) if found else Held(0, None, None)

    # -- the steps -----------------------------------------------------------------------------

    def stage(self, epoch: int, attempt: int) -> PostgresStage:
        name = self._layout.stage_name(epoch, attempt)
        connection = self._driver.connection()
        with told_as_ours("nothing can be staged"):
            connection.execute(self._layout.create_stage(self._layout.in_schema(name), "UNLOGGED"))
        return PostgresStage(
            as_url(self._info, f"{self._layout.mark}_tasks"), self._layout.schema, name
        )

    def begin(self, epoch: int) -> PostgresTransaction:
        transaction = PostgresTransaction(self._writer.connection(), self._layout)
        transaction.begin(epoch)
        return transaction

    def discard(self, epoch: int, attempt: int) -> None:
        stage = self._layout.in_schema(self._layout.stage_name(epoch, attempt))
        with told_as_ours("a staging table can't be dropped"):
            self._driver.connection().execute(f"DROP TABLE IF EXISTS {stage}")

    def close(self) -> None:
        self._writer.close()
        self._driver.close()
