"""Which versions of Spark recovery knows: it reads and writes files of Spark's own checkpoint.

What these files mean is no promise of Spark's, and has changed between versions. So a stream is
started only under a version whose files recovery was tested with.
"""

from __future__ import annotations

from typing import Final

from sparkonce.errors import ConfigError

KNOWN: Final = ("4.2",)


def check_version(version: str) -> None:
    """Of the Spark that runs, which may be another than the PySpark that is installed."""
    if ".".join(version.split(".")[:2]) not in KNOWN:
        raise ConfigError(
            f"this is Spark {version}, and recovery is tested with {', '.join(KNOWN)}: after a "
            "crash it reads and completes Spark's own checkpoint files, which differ between "
            "versions. Run the query with one of these (sparkonce.write, for batch jobs, needs "
            "none)"
        )
