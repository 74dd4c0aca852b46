"""The four steps of a batch, and the four guarantees as orders of them.

A sink is a place to write to that can do each step; what they are called there differs, when they
happen does not. `pipeline` walks through them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from pyspark.sql import DataFrame

from sparkonce.errors import AbortableError
from sparkonce.guarantees import Guarantee
from sparkonce.stream.ledger import Entry, Offsets

Observer = Callable[[str], None]
"""Told where a task or the driver has come to; the verifier lets processes die there."""


class Step(enum.Enum):
    FENCE = "fence"
    """Open an attempt with an epoch of its own: whoever is older is refused from here on."""
    WRITE = "write"
    """The rows, on the executors."""
    RECORD = "record"
    """The batch and its source offsets, into the ledger."""
    DECIDE = "decide"
    """Make what was done since the fence visible, all of it at once."""


ORDERS: Mapping[Guarantee, tuple[Step, ...]] = MappingProxyType(
    {
        Guarantee.EXACTLY_ONCE: (Step.FENCE, Step.WRITE, Step.RECORD, Step.DECIDE),
        Guarantee.AT_LEAST_ONCE: (Step.WRITE, Step.FENCE, Step.RECORD, Step.DECIDE),
        Guarantee.AT_MOST_ONCE: (Step.FENCE, Step.RECORD, Step.DECIDE, Step.WRITE),
        # Nobody waits: records are on their way, progress is noted by a clock of its own.
        Guarantee.NONE: (Step.WRITE, Step.RECORD),
    }
)


@dataclass(frozen=True, slots=True)
class Written:
    """What the executors have written in one attempt."""

    records: int = 0
    size_bytes: int = 0
    dead_letters: int = 0
    lost: int = 0
    tasks: int = 0
    targets: Mapping[str, int] = field(default_factory=dict)


class LayoutRefuted(AbortableError):
    """Raised by `Sink.write`: what the sink assumed of the rows does not hold, and it will not
    assume it again. The next attempt can't fail of it, so this one is not counted."""


class Sink(Protocol):
    """Where a pipeline's rows go. One object for as long as the query runs, in the driver."""

    def take_over(self) -> Entry | None:
        """Before anything else: settle what a former run left open, and tell how far it came."""

    def sources_at(self, entry: Entry) -> list[Offsets | str] | None:
        """The offsets of each source at that entry, for a checkpoint that was lost."""

    def sign(self, entry: Entry, sources: Sequence[Offsets | str] | None) -> None:
        """Put one's own name to the ledger before the first batch: to the last entry, for those who
        are fenced and want to know; of a new pipeline, to the first, so that a ledger that is lost
        can be told from one that never was. `sources` as `sources_at` has them."""

    def check_owner(self) -> None:
        """Between two attempts: FencedError if another driver has taken over meanwhile. `fence`
        need not tell: some sinks notice a successor only when rows are written."""

    def fence(self) -> None: ...

    def write(self, frame: DataFrame) -> Written: ...

    def record(self, entry: Entry, sources: Sequence[Offsets | str]) -> None: ...

    def decide(self) -> Written | None:
        """What was written, where that is known only now."""

    def abandon(self) -> None:
        """Give up the attempt; nothing of it may ever become visible."""

    def leave_empty(self) -> None:
        """End an attempt in which no task had anything to write, and all have said so."""

    def holder(self) -> Entry | None:
        """The last entry as it is now, whoever wrote it."""

    @property
    def epoch(self) -> tuple[int, int]:
        """Producer id and epoch of the attempt, or what stands for them."""

    @property
    def trouble(self) -> str | None:
        """What a task told of its failure; Spark itself shows only the last of several."""

    def close(self) -> None: ...
