"""A mutant: exact replacements in a copy of the product, and the cell that has to notice them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
_PRODUCT = "sparkonce"
_VERIFIER = "verify"
"""What judges can't be sabotaged along with what is judged."""


class DoesNotApply(Exception):
    """The product was changed since the mutant was written."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the quick preset, or one more that the full preset begins with: all that `--only`
    says of a trial."""

    pipeline: str
    guarantee: str
    family: str

    def __str__(self) -> str:
        return f"{self.pipeline}, {self.guarantee}, {self.family}"


@dataclass(frozen=True, slots=True)
class Change:
    """Replaces a text that is in its file exactly once."""

    file: str
    """Below `src/sparkonce`."""
    old: str
    new: str

    def made_in(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1:
            how = "is not there any more" if not found else f"is there {found} times"
            raise DoesNotApply(f"{self.file}: this text {how}:\n{self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    sabotages: str
    """Which rule is broken."""
    cells: tuple[Cell, ...]
    """Each of them has to notice, whatever the seed."""
    changes: tuple[Change, ...]
    """Several where one rule is kept in two places, and either would do."""

    def texts(self, source: Path = SOURCE) -> dict[Path, str]:
        """What the changed files have in them, by their path below `source`."""
        changed: dict[Path, str] = {}
        for change in self.changes:
            path = Path(_PRODUCT, change.file)
            if path.parts[1] == _VERIFIER:
                raise DoesNotApply(f"{change.file} is the verifier's own: it is what judges")
            changed[path] = change.made_in(changed.get(path) or (source / path).read_text())
        return changed


def copy_source(to: Path, mutant: Mutant | None) -> Path:
    """The product with that change, or as it is; answers what belongs on Python's path."""
    copied = to / "src"
    shutil.copytree(SOURCE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in (mutant.texts() if mutant else {}).items():
        (copied / path).write_text(text)
    return copied
