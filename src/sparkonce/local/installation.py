"""PostgreSQL's programs: the system's if they are new enough, else those that `pgserver` carries.

First thing that LocalPostgres needs. `PATH` wins, so that users keep control; then come the
folders where packages put servers of several versions side by side, newest first.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkonce.errors import LocalError
from sparkonce.local.owner import Owner

OLDEST_VERSION = 15

# Debian and its family, PostgreSQL's own RPMs, Homebrew.
_SYSTEM_FOLDERS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
)


@dataclass(frozen=True, slots=True)
class Installation:
    """Programs that were found and asked for their version."""

    folder: Path
    version: int
    origin: str
    """Where they were found, for messages: "PATH", "system" or "pgserver"."""

    def program(self, name: str) -> str:
        return str(self.folder / name)


def find_postgres(owner: Owner) -> Installation:
    """The programs to use; raises LocalError, naming what was looked at, when there are none."""
    rejected: list[str] = []
    for origin, folder in _candidate_folders():
        found = _ask_version(folder, owner)
        if isinstance(found, int) and found >= OLDEST_VERSION:
            return Installation(folder, found, origin)
        reason = f"is version {found}" if isinstance(found, int) else found
        rejected.append(f"{origin} ({folder}) {reason}")
    looked_at = "; ".join(rejected) or "PATH has no `postgres`, nor have the usual folders"
    raise LocalError(
        f"No PostgreSQL {OLDEST_VERSION} or newer was found: {looked_at}. Install your system's "
        "package (`apt install postgresql`, say), or run `pip install 'sparkonce[postgres]'`."
    )


def _candidate_folders() -> Iterator[tuple[str, Path]]:
    on_path = shutil.which("postgres")
    if on_path:
        yield "PATH", Path(on_path).resolve().parent
    for pattern in _SYSTEM_FOLDERS:
        for folder in sorted(Path("/").glob(pattern), key=_version_in_name, reverse=True):
            yield "system", folder
    package = importlib.util.find_spec("pgserver")
    # Not imported: only its files are of use here.
    for place in (package and package.submodule_search_locations) or ():
        yield "pgserver", Path(place) / "pginstall" / "bin"


def _version_in_name(folder: Path) -> int:
    numbers = re.findall(r"\d+", folder.parent.name)
    return int(numbers[0]) if numbers else 0


def _ask_version(folder: Path, owner: Owner) -> int | str:
    """The major version, or why there is none."""
    if not (folder / "initdb").exists():
        return "has no `initdb` beside `postgres`"
    try:
        # As the user who will run it: programs in root's own folders may be closed to them.
        answer = subprocess.run(
            [folder / "postgres", "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            cwd="/",
            user=owner.uid,
            group=owner.gid,
            extra_groups=[] if owner.is_other() else None,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"doesn't run as {owner.name}: {error}"
    # "postgres (PostgreSQL) 15.14 (Debian ...)"
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    if answer.returncode != 0 or match is None:
        return f"doesn't say its version: {(answer.stderr + answer.stdout).strip()[:200]}"
    return int(match.group(1))
