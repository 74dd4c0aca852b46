"""Which build of the product, and of the verifier, trials run with.

A version's number stays the same from commit to commit, and for sources that nobody committed;
so a book has digests of the sources beside it.
"""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Final

import sparkonce
from sparkonce.local.jars import KAFKA_VERSION

_ROOT: Final = Path(sparkonce.__file__).parent
_VERIFIER: Final = "verify"
_NOT_UNDER_TEST: Final = frozenset({_VERIFIER, "console"})
"""Rooms of the package that no trial runs: a change of the page is no change of the product."""
_DIGITS: Final = 12


def build() -> dict[str, str]:
    """Versions and digests of what is installed here, by name."""
    rooms = [path for path in _ROOT.iterdir() if path.is_dir() or path.suffix == ".py"]
    product = [path for path in rooms if path.name not in _NOT_UNDER_TEST]
    return {
        "sparkonce": version("sparkonce"),
        "product": digest(_ROOT, product),
        "verifier": digest(_ROOT, [_ROOT / _VERIFIER]),
        "kafka": KAFKA_VERSION,
        "spark": version("pyspark"),
        "python": platform.python_version(),
    }


def digest(root: Path, places: list[Path]) -> str:
    """Of all Python files in these places, their names and their texts."""
    found = hashlib.sha256()
    files = {
        file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])
    }
    for file in sorted(files):
        found.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return found.hexdigest()[:_DIGITS]
