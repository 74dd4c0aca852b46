"""A table of PostgreSQL, in the driver: prepared, taken over, and its stages.

The stage is an unlogged table of the pipeline: cheap, and emptied when the server crashes, so rows
are counted when they are moved. Whoever takes over waits for the ledger's row, so a commit that is
under way ends first, and its outcome is known.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sparkonce.deliver import row
from sparkonce.deliver.columns import Columns
from sparkonce.deliver.postgres.connection import (
    IDLE_TIMEOUT,
    LOCK_TIMEOUT,
    Driver,
    conninfo,
    idle_timeout_s,
    lock_timeout,
    query_timeout_s,
    told_as_ours,
    transaction,
)
from sparkonce.deliver.postgres.layout import STAGING_SCHEMA, Layout
from sparkonce.deliver.postgres.prepare import located, prepare
from sparkonce.deliver.postgres.stage import PostgresStage
from sparkonce.deliver.postgres.stages import Stages
from sparkonce.deliver.postgres.transaction import PostgresTransaction
from sparkonce.deliver.postgres.types import type_of
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import Held, StoreError
from sparkonce.deliver.target import TableTarget
from sparkonce.postgresql import QUERY_TIMEOUT

_OWN = ("user", "password", STAGING_SCHEMA, LOCK_TIMEOUT, QUERY_TIMEOUT, IDLE_TIMEOUT)
_END_MS = 10_000
"""For a connection that is ended, to have let go of its locks."""


def target(options: Mapping[str, str], query_name: str | None) -> TableTarget:
    settings = TableSettings.parse(options, query_name, place="url", own=_OWN)
    for checked in (lock_timeout, query_timeout_s, idle_timeout_s):
        checked(settings)
    return TableTarget(settings, type_of, PostgresStore, nested_as_json=True)


class PostgresStore:
    def __init__(self, settings: TableSettings, columns: Columns) -> None:
        self._info = conninfo(settings)
        self._timeout = lock_timeout(settings)
        self._layout = Layout(settings, columns)
        self._stages = Stages(self._layout, self._timeout)
        self._epoch = 0
        self._query_timeout_s = query_timeout_s(settings)
        self._driver = Driver(self._info, f"{self._layout.mark}_driver", self._query_timeout_s)
        # Of its own: what is seen to beside a transaction must not become a part of it.
        self._writer = Driver(self._info, f"{self._layout.mark}_writer", self._query_timeout_s)
        # Under `none` a thread loads batches while another one stages the next.
        self._driver_lock = threading.RLock()

    # -- before the query starts ---------------------------------------------------------------

    def prepare(self) -> None:
        self._layout = prepare(self._driver.connection(), self._layout, self._timeout)
        self._stages = Stages(self._layout, self._timeout)

    def take_over(self) -> Held:
        connection = self._driver.connection()
        with told_as_ours("the pipeline can't be taken over"):
            # A driver that was paused in mid-transaction would hold the row for ever. When a
            # transaction of another user's began is not shown to all; its number is, and who has
            # locked the row has one.
            connection.execute(
                f"SELECT pg_terminate_backend(pid, {_END_MS}) FROM pg_stat_activity "
                "WHERE datname = current_database() AND starts_with(application_name, %s) "
                "AND (xact_start IS NOT NULL OR backend_xid IS NOT NULL) "
                "AND pid <> pg_backend_pid()",
                (self._layout.mark,),
            )
            with transaction(connection, self._timeout):
                raised = connection.execute(
                    f"INSERT INTO {self._layout.ledger_beside_values} AS l (pipeline, epoch) "
                    "VALUES (%s, 1) ON CONFLICT (pipeline) DO UPDATE SET epoch = l.epoch + 1 "
                    f"RETURNING {row.READ}",
                    (self._layout.settings.group,),
                ).fetchone()
                self._stages.clear(connection)
        if raised is None:
            raise StoreError("the ledger gave no answer: this is a mistake of sparkonce's")
        held = row.from_row(raised)
        self._epoch = held.epoch
        return held

    def holder(self) -> Held:
        """The row is locked for a moment: a commit that is under way ends first."""
        with self._driver_lock, told_as_ours("the ledger can't be read"):
            connection = self._driver.connection()
            if not self._layout.schema:  # not prepared: a name that is only looked up
                self._layout = located(connection, self._layout)
            with transaction(connection, self._timeout):
                found = connection.execute(
                    f"SELECT {row.READ} FROM {self._layout.ledger_beside_values} "
                    "WHERE pipeline = %s FOR UPDATE",
                    (self._layout.settings.group,),
                ).fetchone()
        return row.from_row(found) if found else Held(0, None, None)

    # -- the steps -----------------------------------------------------------------------------

    def stage(self, epoch: int, attempt: int) -> PostgresStage:
        with self._driver_lock, told_as_ours("nothing can be staged"):
            taken = self._stages.take(self._driver.connection(), epoch, attempt)
        return PostgresStage(
            {**self._info, "application_name": f"{self._layout.mark}_tasks"},
            self._layout.staging_schema,
            taken.name,
            taken.attempt,
            self._layout.encoding,
            self._timeout,
            self._query_timeout_s,
            idle_timeout_s(self._layout.settings),
        )

    def begin(self, epoch: int) -> PostgresTransaction:
        transaction = PostgresTransaction(
            self._writer.connection(), self._layout, self._stages, self._timeout
        )
        transaction.begin(epoch)
        return transaction

    def discard(self, epoch: int, attempt: int) -> None:
        with self._driver_lock, told_as_ours("what was staged can't be removed"):
            if (remove := self._stages.give_back(epoch, attempt)) is not None:
                connection = self._driver.connection()
                with transaction(connection, self._timeout):
                    connection.execute(remove)

    def close(self) -> None:
        self._writer.close()
        if self._layout.settings.run_id is not None and self._epoch:
            with self._driver_lock, told_as_ours("a staging table can't be dropped"):
                self._stages.drop(self._driver.connection(), self._epoch)
        self._driver.close()
