"""The user that PostgreSQL runs as: ourselves, or somebody lesser where we are root.

PostgreSQL refuses to run as root. As root we hand its folder and its processes to another user;
that user must be able to reach both, which the folders above them may forbid.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sparkonce.errors import LocalError

# The one that the system's package made, then the one that every system has.
_INSTEAD_OF_ROOT = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom PostgreSQL's files belong to and its processes run as."""

    name: str
    uid: int
    gid: int

    @classmethod
    def choose(cls) -> Self:
        """Ourselves, or the first user that may stand in for root."""
        if os.geteuid() != 0:
            return cls("you", os.geteuid(), os.getegid())
        for name in _INSTEAD_OF_ROOT:
            try:
                user = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name, user.pw_uid, user.pw_gid)
        raise LocalError(
            "PostgreSQL refuses to run as root, and this system has neither a user 'postgres' nor "
            "'nobody' to run it as. Add one (`useradd postgres`), or don't run this as root."
        )

    def is_other(self) -> bool:
        return self.uid != os.geteuid()

    def give(self, path: Path) -> None:
        """Make a file or a folder of ours theirs."""
        if self.is_other():
            os.chown(path, self.uid, self.gid)

    def closed_parent(self, path: Path) -> Path | None:
        """The first folder above `path` that this user may not pass through; None: all open."""
        if not self.is_other():
            return None
        return next((each for each in reversed(path.parents) if not self._may_pass(each)), None)

    def _may_pass(self, folder: Path) -> bool:
        found = folder.stat()
        if found.st_uid == self.uid:
            needed = stat.S_IXUSR
        elif found.st_gid == self.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        return bool(found.st_mode & needed)
