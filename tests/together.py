"""Which test files run in the same process, where several processes share them.

Three brokers and a Spark take longer to start than most tests take: files that need them stay
together. Not all that need Spark, or the other processes would be done long before.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

_TESTS = Path(__file__).parent


class Together(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group_of(_TESTS.parent / nodeid.partition("::")[0])


def needs_three_brokers(path: Path) -> bool:
    return "kafka3" in _text(path)


def group_of(path: Path) -> str:
    """The name of the files that this one goes with; its own if it goes alone."""
    if needs_three_brokers(path):
        return "three brokers"
    room = path.relative_to(_TESTS).parts[0]
    if "spark: SparkSession" in _text(path):
        return "Spark and streams" if room == "stream" else "Spark and both ends"
    return str(path)


@cache
def _text(path: Path) -> str:
    return path.read_text()
