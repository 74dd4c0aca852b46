"""Folders in which attempts are staged as files, in the driver."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

_log = logging.getLogger("sparkonce.deliver")


def remove(folder: Path) -> None:
    """As far as it can be removed now: a zombie's task may write a file into it at the same time.
    What is left is in nobody's way, and goes at the next start."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        _log.warning("%s stays until the next start: %s", folder, error)
