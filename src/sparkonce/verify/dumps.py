"""Dumps of the databases beside a pipeline: neither may be in the other's way.

`pg_dump` locks every table from its beginning to its end, so whoever drops or alters one waits
for it; and it stops at a table that has gone since it began. Both happen here: such locks are held
until the end, and dumps are made one after the other meanwhile. A dump that fails, or that waits
for a lock for longer than any transaction should take, is the pipelines' fault unless the server
was ended. May be asked from any thread.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

import psycopg
from psycopg import conninfo, sql

from sparkonce.errors import SparkonceError
from sparkonce.local import LocalPostgres
from sparkonce.local.installation import find_postgres
from sparkonce.local.owner import Owner

_AT_MOST: Final = 40
_DUMP_TIMEOUT_S: Final = 60
_SETTLED_WITHIN_S: Final = 4 * _DUMP_TIMEOUT_S
_LOCK_TIMEOUT_MS: Final = 5_000
_LAST_CHARS: Final = 500
_DATABASES: Final = "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate"
_TABLES: Final = (
    "SELECT schemaname, tablename FROM pg_tables "
    "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
)


class Dumps:
    """For one server. `ended` tells how often it was ended so far: what fails then is no wonder."""

    def __init__(self, postgres: LocalPostgres, ended: Callable[[], int]) -> None:
        self._postgres = postgres
        self._ended = ended
        self._is_over = threading.Event()
        self._under_way: list[tuple[threading.Thread, ExitStack]] = []

    def begin(
        self,
        came_to_pass: Callable[[], None],
        was_hindered: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Returns when the locks are held. `came_to_pass` is called behind the first whole dump,
        `was_hindered` with what the server says of one that is not whole, and `failed` where none
        could be tried."""
        locks = ExitStack()
        before = self._ended()
        try:
            self._lock_all(locks)
        except psycopg.Error as error:
            locks.close()
            if self._ended() == before:
                came_to_pass()
                was_hindered(f"not all tables could be locked for pg_dump: {error}")
            return

        def dump() -> None:
            try:
                hindered = self._dump_again_and_again(came_to_pass)
                if hindered:
                    came_to_pass()
                    was_hindered(hindered)
            except Exception as error:  # noqa: BLE001 - told in the outcome of its trial
                failed(error)

        thread = threading.Thread(target=dump, name="sparkonce-dumps", daemon=True)
        self._under_way.append((thread, locks))
        thread.start()

    def are_under_way(self) -> bool:
        return any(thread.is_alive() for thread, _ in self._under_way)

    def settle(self) -> None:
        """Until the last one has ended."""
        self._is_over.set()
        for thread, locks in self._under_way:
            thread.join(_SETTLED_WITHIN_S)
            with suppress(psycopg.Error):  # the server was killed meanwhile
                locks.close()
            if thread.is_alive():
                raise SparkonceError(
                    f"a dump beside the pipelines did not end in {_SETTLED_WITHIN_S} s, although "
                    f"pg_dumpall is given {_DUMP_TIMEOUT_S} s: the server hangs; look into its log"
                )
        self._under_way.clear()
        self._is_over.clear()

    def _lock_all(self, locks: ExitStack) -> None:
        url = self._postgres.url
        with psycopg.connect(url) as connection:
            names = [name for (name,) in connection.execute(_DATABASES)]
        server, _, _ = url.rpartition("/")
        for name in names:
            connection = psycopg.connect(f"{server}/{name}")
            locks.callback(connection.close)
            connection.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
            for table in connection.execute(_TABLES).fetchall():
                lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")
                connection.execute(lock.format(sql.Identifier(*table)))

    def _password(self) -> dict[str, str]:
        """pg_dumpall keeps a URL's password from the dumps that it starts."""
        password = conninfo.conninfo_to_dict(self._postgres.url).get("password")
        return {"PGPASSWORD": str(password)} if password else {}

    def _dump_again_and_again(self, came_to_pass: Callable[[], None]) -> str:
        """What was said of one that failed, behind which there are no more; "" if none did."""
        program = find_postgres(Owner.choose()).program("pg_dumpall")
        for number in range(_AT_MOST):
            before = self._ended()
            done = subprocess.run(
                [
                    program,
                    "--schema-only",
                    "--no-password",
                    f"--lock-wait-timeout={_LOCK_TIMEOUT_MS}",
                    f"--dbname={self._postgres.url}",
                ],
                env=os.environ | self._password(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=_DUMP_TIMEOUT_S,
            )
            if self._ended() != before:
                return ""
            if done.returncode:
                return f"pg_dump failed beside the pipeline: {done.stderr[-_LAST_CHARS:]}"
            if not number:
                came_to_pass()
            if self._is_over.is_set():
                break
        return ""
