"""What came of a trial: the words that the verifier's matrix, report and JSON are made of.

`checker` makes findings of a history, `promises` makes a verdict of findings and a guarantee, the
campaign collects outcomes, `report` shows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_NO_FAULTS: Final = ("MoreInput(", "AwaitSnapshot(", "AwaitAnother(")
"""Elements of a schedule that belong to it and hurt nobody."""


class Defect(StrEnum):
    """What can be wrong with the output of a pipeline."""

    LOST = "lost"
    REPEATED = "repeated"
    REORDERED = "reordered"
    UNKNOWN = "unknown"
    """An identity that never went in."""
    DIRTY = "dirty read"
    """Seen by a read_committed reader, and not there afterwards: of an aborted transaction."""
    ABORTED = "aborted read"
    """It came out, and the transaction that had put it into the input was aborted (G1a)."""
    TORN = "torn"
    """A part of a transaction is visible."""
    SPLIT = "split"
    """Records of one key and one transaction are in two partitions of a topic."""
    OFFSETS = "offsets"
    """Progress and data disagree at a standstill."""
    STATE = "state"
    """What a stateful step has counted disagrees with what it has told."""
    BACKWARDS = "backwards"
    """A reader was handed an offset at or before one that it had been handed."""
    HANGING = "hanging"
    """A transaction was left open: readers wait behind it."""
    UNMARKED = "unmarked"
    """It claims transactions, and the log has batches without the bit, or no markers."""
    INTERFERENCE = "interference"
    """It stood in the way of others in its database: a dump failed, or there was a deadlock."""


@dataclass(frozen=True, slots=True)
class Finding:
    defect: Defect
    count: int
    examples: tuple[str, ...]
    """A few identities or offsets, for people."""
    reader: str = ""


class Verdict(StrEnum):
    KEPT = "kept"
    """Nothing was found that the guarantee excludes."""
    BROKEN = "broken"
    SHOWN = "shown"
    """A control that found what it had to find."""
    WEAK = "weak"
    """A control that found nothing: the faults were too weak, the run proves nothing."""
    FAILED = "failed"
    """The trial itself could not be run to its end."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of a trial's story, in seconds from its start."""

    at_s: float
    kind: str
    """`life`, `fault`, `broker`, `kill`, `pause`, `checkpoint`, `end`, `reader` or `log`."""
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trial, as it is kept in the JSON."""

    number: int
    seed: int
    pipeline: str
    guarantee: str
    family: str
    """The column of the matrix: `network`, `crash`, `brokers`, `zombie`, …"""
    schedule: tuple[str, ...]
    """What was done, element by element, as code that makes it again."""
    verdict: Verdict
    findings: tuple[Finding, ...]
    records: int
    duration_s: float
    story: tuple[Happening, ...] = ()
    error: str = ""
    """Why it failed, if it did."""
    shrunk: tuple[str, ...] | None = None
    """The shortest schedule that still breaks the promise, if it was broken."""
    control: bool = False
    must_show: tuple[Defect, ...] = ()
    """For a control: what has to be found."""
    fired: tuple[bool, ...] | None = None
    """Element by element, whether it came to pass; None where nobody noted it."""
    workload: str = ""
    """What went in, as code that makes it again; "": as it was before it was noted."""
    cluster: str = ""
    """Which kind it ran on; "": the usual one."""
    build: int = 0
    """Which of the book's `builds` it ran with, counted from 0."""
    under_faults_s: float = 0.0
    """How long the pipeline worked, in all its lives, in a trial that is under faults."""
    refused: bool = False
    """It refused to go on, where it may: what was left in its input counts as neither lost nor
    kept."""

    @property
    def faults(self) -> tuple[bool, ...] | None:
        """Whether each of its faults came to pass; None where nobody noted it."""
        if self.fired is None:
            return None
        told = zip(self.schedule, self.fired, strict=False)
        return tuple(fired for line, fired in told if not line.startswith(_NO_FAULTS))

    @property
    def is_without_fault(self) -> bool:
        """It is known that none came to pass: whatever was found, it shows nothing."""
        return self.faults is not None and not any(self.faults)

    @property
    def is_under_faults(self) -> bool:
        """It came to its end, is no control, and at least one fault came to pass."""
        if self.control or self.verdict is Verdict.FAILED:
            return False
        return any(self.faults or ())

    @property
    def is_proof(self) -> bool:
        """It shows that its guarantee holds: kept to the end, under at least one fault."""
        return self.is_under_faults and self.verdict is Verdict.KEPT and not self.refused
