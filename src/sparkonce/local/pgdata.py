"""PostgreSQL's folder: made once, recognised when it is used again.

Below it, `data` is PostgreSQL's own, `postgres.log` what it says, `password` the password of its
user `postgres`. All of it belongs to the user that PostgreSQL runs as.
"""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage, rmtree

from sparkonce.errors import LocalError
from sparkonce.local.family import Family
from sparkonce.local.installation import Installation
from sparkonce.local.owner import Owner

SUPERUSER = "postgres"

_INITDB_TIMEOUT_S = 120.0
_LOG_LINES_SHOWN = 25
_FULL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where one server lives; `is_temporary`: for as long as its LocalPostgres does."""

    path: Path
    owner: Owner
    is_temporary: bool

    @classmethod
    def choose(cls, path: Path | None, owner: Owner) -> DataFolder:
        """The folder that was asked for, or a new one where its owner can reach it."""
        if path is not None:
            return cls(path, owner, is_temporary=False)
        places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
        place = next((each for each in places if not owner.closed_parent(each / "new")), places[0])
        new = Path(tempfile.mkdtemp(prefix="sparkonce-postgres-", dir=place))
        return cls(new, owner, is_temporary=True)

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def log_file(self) -> Path:
        return self.path / "postgres.log"

    @property
    def scratch(self) -> Path | None:
        """What to delete should we die without having stopped the server."""
        return self.path if self.is_temporary else None

    @property
    def password(self) -> str:
        return self._password_file.read_text().strip()

    @property
    def _password_file(self) -> Path:
        return self.path / "password"

    def prepare(self, installation: Installation) -> None:
        """Make the folder and the databases in it, if they aren't there yet."""
        try:
            if (self.data / "PG_VERSION").exists():
                return
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_foreign()
            self.owner.give(self.path)
            for file in (self.log_file, self._password_file):
                file.touch(mode=0o600)
                self.owner.give(file)
            self._password_file.write_text(secrets.token_hex(16))
        except OSError as error:
            raise LocalError(
                f"The folder {self.path} can't be prepared for PostgreSQL: {error}. "
                "Pass a folder on a disk with free space that you may write to."
            ) from error
        closed = self.owner.closed_parent(self.path)
        if closed is not None:
            raise LocalError(
                f"PostgreSQL refuses to run as root, so it runs as '{self.owner.name}', and that "
                f"user may not pass through {closed}. Open it (`chmod o+x {closed}`), or pass a "
                "folder elsewhere."
            )
        self._initdb(installation)

    def remove(self) -> None:
        """Delete it if it is temporary."""
        if self.is_temporary:
            rmtree(self.path)

    def says_ready(self, pid: int) -> bool:
        """Whether that postmaster has noted that it is up, where `pg_ctl` looks for it too."""
        try:
            notes = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(notes) > 7 and notes[0] == str(pid) and notes[7].strip() == "ready"

    def last_words(self, log_start: int) -> str:
        """Why a program ended, as far as its log tells it from a position on, and what to do."""
        log = self.log_file.read_bytes()[log_start:].decode(errors="replace")
        shown = "\n".join(f"  {line}" for line in log.splitlines()[-_LOG_LINES_SHOWN:])
        # A full disk may have no room for that line either: the log lies on it too.
        if "No space left on device" in shown or disk_usage(self.path).free < _FULL_BYTES:
            reason = f"The disk that holds {self.path} is full: free some, or pass another folder."
        else:
            reason = "The reason, if it wasn't killed, is in its log."
        return f"{reason} The end of {self.log_file}:\n{shown}"

    def _refuse_foreign(self) -> None:
        # What a first start that was cut short has left is ours.
        ours = {self._password_file.name, self.log_file.name, _unfinished(self.data).name}
        foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name not in ours)
        if foreign:
            raise LocalError(
                f"The folder {self.path} isn't empty and holds no server of ours (it has "
                f"'{foreign[0]}'). Pass an empty or a new folder."
            )

    def _initdb(self, installation: Installation) -> None:
        unfinished = _unfinished(self.data)
        if unfinished.exists():
            rmtree(unfinished)
        command = [
            installation.program("initdb"),
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            f"--pwfile={self._password_file}",
            "--auth=scram-sha-256",
            # Text sorts by its bytes, on every machine alike, and as in Spark.
            "--locale=C",
            "--encoding=UTF8",
            *(["--no-sync"] if self.is_temporary else []),
        ]
        log_start = self.log_file.stat().st_size
        tool = Family(command, owner=self.owner, output=self.log_file, scratch=self.scratch)
        try:
            exit_code = tool.wait(_INITDB_TIMEOUT_S)
        finally:
            tool.kill()  # if it takes too long, or if we were interrupted
        if exit_code != 0:
            raise LocalError(f"PostgreSQL's `initdb` failed. {self.last_words(log_start)}")
        unfinished.rename(self.data)


def _unfinished(data: Path) -> Path:
    """Where a new `data` is made: it gets its name when it is whole."""
    return data.with_name("data.new")
