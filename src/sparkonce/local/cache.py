"""Where downloaded and derived files are kept between runs.

Java wrappers and jars live in one folder per user, so that a second run, in any checkout, starts
at once and without a network. Nothing here is precious: the whole folder may be deleted.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache folder for sparkonce; `SPARKONCE_CACHE` overrides it."""
    override = os.environ.get("SPARKONCE_CACHE")
    if override:
        return Path(override).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "sparkonce"
    xdg_cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg_cache) if xdg_cache else Path.home() / ".cache") / "sparkonce"


def put(path: Path, content: bytes, *, executable: bool = False) -> None:
    """Write a file as a whole: of two processes at once, both end up with all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    if executable:
        draft.chmod(0o755)
    draft.replace(path)


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold the cache's lock `name`: of two processes, the second waits for the first.

    The kernel drops the lock when its holder dies, so a crash never leaves it locked.
    """
    path = cache_dir() / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
