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


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive for one Java and one folder of jars, whether it has been made or not."""

    folder: Path
    jars: Path

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
        return cls(cache_dir() / "archives" / digest, jars)

    @property
    def file(self) -> Path:
        return self.folder / "classes.jsa"

    def options(self) -> tuple[str, ...]:
        """For the JVM's command line; none as long as there is no archive."""
        if not self.file.exists():
            return ()
        # Where it doesn't fit after all, that is no news to whoever started the program.
        return f"-XX:SharedArchiveFile={self.file}", "-Xlog:cds*=off"

    @contextmanager
    def draft(self) -> Iterator[tuple[str, ...]]:
        """Options for a JVM that ends, cleanly, before this does: what it has loaded is kept."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        draft = self.folder.with_name(f".{self.folder.name}")
        shutil.rmtree(draft, ignore_errors=True)  # of somebody who died over it
        draft.mkdir()
        try:
            yield f"-XX:ArchiveClassesAtExit={draft / self.file.name}", "-Xlog:cds*=off"
            (draft / _ORIGIN).write_text(str(self.jars))
            if (draft / self.file.name).exists():
                shutil.rmtree(self.folder, ignore_errors=True)
                draft.rename(self.folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def remove_outdated(self) -> None:
        """Archives of jars that are gone or were replaced: they are large, and of no use."""
        for origin in self.folder.parent.glob(f"*/{_ORIGIN}"):
            jars = Path(origin.read_text())
            if origin.parent != self.folder and (jars == self.jars or not jars.exists()):
                shutil.rmtree(origin.parent, ignore_errors=True)


def can_archive(java: Java) -> bool:
    """Whether this Java has the archive of its own classes that others are built upon."""
    asked = subprocess.run(
        [java.executable, "-Xshare:on", "-version"], capture_output=True, timeout=30
    )
    return asked.returncode == 0


def _identity(jar: Path) -> str:
    found = jar.stat()
    return f"{jar.name} {found.st_size} {found.st_mtime_ns}"
