"""Class archives: what a JVM reads, checks and links at its start, done once and kept.

Kafka and Spark load ten thousand classes and more before they do anything, and most of a start's
CPU time goes there. `rehearsal.py` makes the archives, ahead of time; brokers, tools and sessions
are started with them. A JVM looks itself whether an archive fits (same Java, same jars) and runs
without it otherwise, so nothing depends on one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkonce.local.cache import cache_dir
from sparkonce.local.java import Java

_ORIGIN = "made-from"
_AHEAD_OF_TIME = 25
"""The first Java that makes an archive of all classes, its own included, in one run. An older one
builds upon the archive of its own classes that it was delivered with."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive for one Java and one folder of jars, whether it has been made or not."""

    folder: Path
    jars: Path
    java: Java

    @classmethod
    def of(cls, java: Java, jars: Path) -> Archive:
        release = java.home / "release"
        made_from = [
            str(java.home.resolve()),
            release.read_text() if release.exists() else str(java.version),
            str(jars),
            *sorted(_identity(jar) for jar in jars.glob("*.jar")),
        ]
        digest = hashlib.sha256("\n".join(made_from).encode()).hexdigest()[:16]
        return cls(cache_dir() / "archives" / digest, jars, java)

    @property
    def file(self) -> Path:
        return self.folder / "classes.jsa"

    def options(self) -> tuple[str, ...]:
        """For the JVM's command line; none as long as there is no archive."""
        if not self.file.exists():
            return ()
        use = "AOTCache" if self._is_ahead_of_time else "SharedArchiveFile"
        return f"-XX:{use}={self.file}", *self._quiet

    @contextmanager
    def draft(self) -> Iterator[tuple[str, ...]]:
        """Options for a JVM that ends, cleanly, before this does: what it has loaded is kept."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        draft = self.folder.with_name(f".{self.folder.name}")
        shutil.rmtree(draft, ignore_errors=True)  # of somebody who died over it
        draft.mkdir()
        try:
            make = "AOTCacheOutput" if self._is_ahead_of_time else "ArchiveClassesAtExit"
            yield f"-XX:{make}={draft / self.file.name}", *self._quiet
            (draft / _ORIGIN).write_text(self._origin)
            if (draft / self.file.name).exists():
                shutil.rmtree(self.folder, ignore_errors=True)
                draft.rename(self.folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def can_be_made(self) -> bool:
        """Whether this Java is new enough, or has the archive of its own classes."""
        if self._is_ahead_of_time:
            return True
        asked = subprocess.run(
            [self.java.executable, "-Xshare:on", "-version"], capture_output=True, timeout=30
        )
        return asked.returncode == 0

    @property
    def _is_ahead_of_time(self) -> bool:
        return self.java.version >= _AHEAD_OF_TIME

    @property
    def _quiet(self) -> tuple[str, ...]:
        """Where an archive doesn't fit after all, that is no news to whoever started a program."""
        return ("-Xlog:cds*=off", *(["-Xlog:aot*=off"] if self._is_ahead_of_time else []))

    @property
    def _origin(self) -> str:
        return f"{self.java.home}\n{self.jars}"

    def remove_outdated(self) -> None:
        """Archives of a Java or of jars that are gone or were replaced: large, and of no use."""
        for origin in self.folder.parent.glob(f"*/{_ORIGIN}"):
            made_from = origin.read_text()
            is_replaced = made_from == self._origin and origin.parent != self.folder
            if is_replaced or not all(Path(each).exists() for each in made_from.split("\n")):
                shutil.rmtree(origin.parent, ignore_errors=True)


def _identity(jar: Path) -> str:
    found = jar.stat()
    return f"{jar.name} {found.st_size} {found.st_mtime_ns}"
