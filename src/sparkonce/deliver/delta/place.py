"""Where a table of Delta is, and where attempts are staged in it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sparkonce.deliver.folder import remove
from sparkonce.errors import ConfigError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


@dataclass(frozen=True, slots=True)
class Place:
    root: Path
    mark: str
    """Of the pipeline, whose own name may not do as a file's."""

    @classmethod
    def of(cls, path: str, pipeline: str) -> Place:
        return cls(_local(path), hashlib.sha256(pipeline.encode()).hexdigest()[:12])

    def attempt(self, epoch: int, attempt: int) -> Path:
        return self.root / f"{self._stages}{epoch}-{attempt}"

    def clear(self, epoch: int) -> None:
        """Remove what was staged in this pipeline's former epochs."""
        for folder in self.root.glob(f"{self._stages}*"):
            if int(folder.name.removeprefix(self._stages).split("-")[0]) < epoch:
                remove(folder)

    @property
    def _stages(self) -> str:
        # Delta's readers and VACUUM leave alone what begins with an underscore.
        return f"_sparkonce-{self.mark}-"


def _local(path: str) -> Path:
    scheme = _SCHEME.match(path)
    if scheme is None:
        return Path(path).absolute()
    after = path[scheme.end() :]
    if scheme[1].lower() != "file" or not after.startswith("/"):
        raise ConfigError(
            f"path={path!r}: only tables in local folders can be written, or in ones that are "
            "mounted like them on driver and executors; give a path without a scheme, or file:///…"
        )
    if after.startswith("//"):
        after = after[2:]
    if not after.startswith("/"):
        raise ConfigError(f"path={path!r} names a host: write file:///… with three slashes")
    return Path(after)
