"""What is known of a run once it is over: what went in, what readers saw, what was left.

Made by the trial from what other clients tell (`readers`), judged by `checker`. Values only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that went into the pipeline."""

    identity: str
    lane: str = ""
    """Records of one lane have to come out in the order in which they went in; "": none is due."""
    topics: tuple[str, ...] = ()
    """Where it is due, once in each. Empty: once, wherever."""
    acknowledged: bool = True
    """Whether the cluster confirmed it. What it did not may be missing without being lost."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a stateful step says beside its output: the state before and after this record."""

    key: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A record that came out, as a reader saw it."""

    identity: str
    topic: str
    partition: int
    offset: int
    running: Running | None = None
    key: bytes | None = None
    """Where the pipeline leaves the partition to it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All that one reader saw, in the order in which it was handed over."""

    reader: str
    """Who read, and when: for people."""
    seen: tuple[Seen, ...]
    live: bool = False
    """It read while things went wrong, and need not have come to the end."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A standstill between two lives of the pipeline: progress and data as they were then."""

    name: str
    done: frozenset[str]
    """Identities in front of the committed source offsets."""
    visible: frozenset[str]
    """Identities that a read_committed reader could see."""


@dataclass(frozen=True, slots=True)
class Markings:
    """What Kafka's own tool says of the batches in the output's log segments."""

    transactional: int
    """Record batches with the transactional bit."""
    plain: int
    """Record batches without it."""
    commits: int
    """Control records that commit; with those that abort, the markers of transactions."""
    aborts: int

    @classmethod
    def sum(cls, parts: Iterable[Markings]) -> Markings:
        return cls(*(sum(counts) for counts in zip(*map(astuple, parts), strict=True)))


@dataclass(frozen=True, slots=True)
class History:
    sent: tuple[Sent, ...]
    readings: tuple[Reading, ...]
    """At least one that isn't live: it came to the end when all was over."""
    moments: tuple[Moment, ...] = ()
    units: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Identities that become visible together or not at all: what one transaction holds."""
    left_open: tuple[tuple[str, int], ...] = ()
    """Partitions whose last stable offset stayed behind their end."""
    markings: Markings | None = None
    """None where the log was not looked at."""
    transactional: bool = False
    """Whether the pipeline claims to write in transactions, so that markings are due."""
    aborted: frozenset[str] = frozenset()
    """Identities in the input whose transaction was aborted: they are due nowhere."""
    interference: tuple[str, ...] = ()
    """What others in its database could not do because of it, in the database's own words."""
