"""`sparkonce verify` as users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VERIFY = [sys.executable, "-c", "from sparkonce.console.app import main; main()", "verify"]


def verify(folder: Path, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*VERIFY, *arguments], cwd=folder, capture_output=True, text=True, timeout=timeout_s
    )
    print(done.stdout[-8000:], done.stderr[-3000:])
    return done
