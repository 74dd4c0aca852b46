"""LocalPostgres: a real PostgreSQL server as child processes of this Python.

The database beside LocalKafka, with the verbs that tests and the verifier need: stop, kill, pause.
It keeps its port and its data for as long as the object lives, whatever happens to its processes
meanwhile.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from sparkonce.errors import ConfigError, LocalError
from sparkonce.local.family import Family
from sparkonce.local.installation import find_postgres
from sparkonce.local.owner import Owner
from sparkonce.local.pgdata import SUPERUSER, DataFolder
from sparkonce.local.ports import HOST, free_ports, is_free

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_ANSWER_TIMEOUT_S = 2
_POLL_INTERVAL_S = 0.02
_DATABASE = "postgres"

# To stop, PostgreSQL's words for it. The default, SIGTERM, would wait until all clients have left.
_FAST, _IMMEDIATE = signal.SIGINT, signal.SIGQUIT


class LocalPostgres:
    """A server on 127.0.0.1 with one user, who may do everything, and one database.

    Without `folder` everything lives in a temporary folder that goes with the server; with it,
    data is kept, and a later start finds it again. `settings` go over those of `postgresql.conf`.
    Nothing is traded for speed: what was committed survives kill() (`fsync` is on).
    """

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._wanted_folder = Path(folder).absolute() if folder is not None else None
        self._port = port
        self._settings = dict(settings or {})
        self._folder: DataFolder | None = None
        self._family: Family | None = None
        self._log_start = 0  # where this run's lines begin; earlier ones tell of former runs
        fixed = sorted(self._settings.keys() & self._fixed_settings(0).keys())
        if fixed:
            raise ConfigError(
                f"The setting '{fixed[0]}' of a local PostgreSQL can't be chosen: it listens on "
                f"{HOST} and nowhere else. Pass port=... for the port, or leave it out."
            )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Life

    def start(self) -> Self:
        """Start it, also after kill(), and wait until it takes clients; recovery included."""
        if self.is_alive():
            raise LocalError("This PostgreSQL is already running; stop() it before a new start().")
        is_first = self._folder is None
        try:
            self._launch()
            self.wait_until_ready()
        except BaseException:
            if self._family is not None:
                self._family.kill()
            if is_first:  # later ones have data to lose
                self._forget_folder()
            raise
        return self

    def stop(self) -> None:
        """Stop it, cleanly if its data is kept; remove a temporary folder."""
        if self._folder is not None:
            self._end(_IMMEDIATE if self._folder.is_temporary else _FAST)
            self._forget_folder()

    def restart(self) -> None:
        """Stop it cleanly and start it again, on its own port and data."""
        self._end(_FAST)
        self.start()

    def kill(self) -> None:
        """SIGKILL for all its processes, as a power cut; returns when the last one is gone."""
        if self._family is not None:
            self._family.kill()

    def pause(self) -> None:
        """Freeze all its processes (SIGSTOP): connections stay open, nothing is answered."""
        self._running().pause()

    def resume(self) -> None:
        """Let a paused server go on."""
        self._running().resume()

    def is_alive(self) -> bool:
        """Whether it has processes; a paused one does."""
        return self._family is not None and self._family.is_alive()

    def wait_until_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait until it takes clients."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.raise_if_died()
            # Asked only then: it would log each client that comes too early.
            if self._place().says_ready(self.pid) and _takes_clients(self.url):
                return
            if time.monotonic() > deadline:
                raise LocalError(
                    f"Waited {timeout_s:g} s for PostgreSQL to take clients, in vain. Is it "
                    f"paused, or this machine under load? {self._last_words()}"
                )
            time.sleep(_POLL_INTERVAL_S)

    def raise_if_died(self) -> None:
        """LocalError, with the end of its log, if it isn't running any more."""
        if not self.is_alive():
            raise LocalError(f"PostgreSQL isn't running. {self._last_words()}")

    # Where it is

    @property
    def url(self) -> str:
        """For psycopg, ADBC, psql and all that is built on libpq."""
        return f"postgresql://{SUPERUSER}:{self._place().password}@{HOST}:{self.port}/{_DATABASE}"

    @property
    def jdbc_url(self) -> str:
        """For Java's driver, which Spark's JDBC source and sink use."""
        credentials = f"user={SUPERUSER}&password={self._place().password}"
        return f"jdbc:postgresql://{HOST}:{self.port}/{_DATABASE}?{credentials}"

    @property
    def port(self) -> int:
        """The same at every start of this object."""
        if self._port is None:
            (self._port,) = free_ports(1)
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the postmaster, the parent of all others."""
        return self._running().pid

    @property
    def folder(self) -> Path:
        """Where data and log lie: `postgres.log` is the log."""
        return self._place().path

    # Inside

    def _launch(self) -> None:
        if not is_free(self.port):
            raise LocalError(self._port_taken())
        owner = Owner.choose()
        installation = find_postgres(owner)
        if self._folder is None:
            self._folder = DataFolder.choose(self._wanted_folder, owner)
        self._folder.prepare(installation)
        self._log_start = self._folder.log_file.stat().st_size
        settings = {
            # Files in the data folder: in /dev/shm, a kill would leave them behind for good.
            "dynamic_shared_memory_type": "mmap",
            **self._settings,
            **self._fixed_settings(self.port),
        }
        self._family = Family(
            [
                installation.program("postgres"),
                "-D",
                str(self._folder.data),
                *(argument for pair in settings.items() for argument in ("-c", "=".join(pair))),
            ],
            owner=owner,
            output=self._folder.log_file,
            scratch=self._folder.scratch,
        )

    @staticmethod
    def _fixed_settings(port: int) -> dict[str, str]:
        return {"listen_addresses": HOST, "port": str(port), "unix_socket_directories": ""}

    def _end(self, how: signal.Signals) -> None:
        if self._family is not None and self._family.is_alive():
            self._family.send(how)
            if self._family.wait(_STOP_TIMEOUT_S) is None:
                self._family.kill()

    def _forget_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()
        self._folder = None
        self._family = None

    def _place(self) -> DataFolder:
        if self._folder is None:
            raise LocalError("This PostgreSQL isn't started, so it has no folder and no URL yet.")
        return self._folder

    def _running(self) -> Family:
        self.raise_if_died()
        assert self._family is not None  # because it lives
        return self._family

    def _last_words(self) -> str:
        if self._folder is None:
            return "Start it first: start()."
        return self._folder.last_words(self._log_start)

    def _port_taken(self) -> str:
        return (
            f"Port {self.port} on {HOST}, which PostgreSQL needs, is taken by another process. "
            "Stop that process, or pass another port, or none for a free one."
        )


def _takes_clients(url: str) -> bool:
    import psycopg  # here, because those who only want Kafka needn't wait for it

    try:
        psycopg.connect(url, connect_timeout=_ANSWER_TIMEOUT_S).close()
    except psycopg.OperationalError:
        return False
    return True
