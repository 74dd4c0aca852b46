"""What each guarantee excludes, and what a verification has to show before it proves anything.

`checker` finds defects without knowing what was promised; here the two meet. A strong guarantee is
judged by what was not found. That alone says little, since faults that hit nothing find nothing:
the weaker guarantees ran under the same faults, and must have lost or repeated something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sparkonce.guarantees import Guarantee
from sparkonce.verify.outcome import Defect, Finding, Outcome, Verdict

_NEVER: Final = frozenset(
    {
        # No failure invents a record: an identity that never went in is a bug, ours or the trial's.
        Defect.UNKNOWN,
        # Who reads what was never committed has chosen the wrong isolation level; no crash does it.
        Defect.ABORTED,
        # These two are Kafka's promises to a read_committed reader. They hold for every writer;
        # records outside transactions are committed as soon as they are readable.
        Defect.DIRTY,
        Defect.BACKWARDS,
        # An open transaction stops all readers of the partition, also those of other pipelines.
        # Weaker guarantees have transactions too, around their progress.
        Defect.HANGING,
        # Whoever else uses the database has asked for no guarantee, and must not pay for one.
        Defect.INTERFERENCE,
    }
)
"""What no guarantee permits."""

EXCLUDED: Final[Mapping[Guarantee, frozenset[Defect]]] = MappingProxyType(
    {
        # Data and progress go their own ways and nobody waits for an answer: records may be lost,
        # repeated, overtaken. Transactions aren't claimed, so none can be torn, split or unmarked.
        Guarantee.NONE: _NEVER,
        # Progress first, so a crash before the data loses it (LOST), half of it (TORN), while
        # progress is ahead (OFFSETS) and the state has counted it (STATE). Nothing is sent again:
        # that rules out repeats, and with them a resend that is overtaken. UNMARKED and SPLIT are
        # left out because its data is never in a transaction.
        Guarantee.AT_MOST_ONCE: _NEVER | {Defect.REPEATED, Defect.REORDERED},
        # Data first, so a crash before the progress leaves data that is ahead of it (OFFSETS), and
        # perhaps a part of a batch (TORN), which is then written again (REPEATED) by a state that
        # starts over (STATE), perhaps to more partitions (SPLIT). Nothing acknowledged is lost;
        # order holds for the first of each record. Who claims transactions has to write them,
        # whatever they are used for.
        Guarantee.AT_LEAST_ONCE: _NEVER | {Defect.LOST, Defect.REORDERED, Defect.UNMARKED},
        # One atomic write. Whatever is found breaks it, defects that are yet to be thought of too.
        Guarantee.EXACTLY_ONCE: frozenset(Defect),
    }
)

SHOWS: Final[Mapping[Guarantee, frozenset[Defect]]] = MappingProxyType(
    {
        # The two writes are independent, so faults that are strong enough hit them both ways.
        Guarantee.NONE: frozenset({Defect.LOST, Defect.REPEATED}),
        # The one that it permits and the next permits not, and the other way round.
        Guarantee.AT_MOST_ONCE: frozenset({Defect.LOST}),
        Guarantee.AT_LEAST_ONCE: frozenset({Defect.REPEATED}),
        # It permits nothing, so there is nothing it could show: the others are its controls.
        Guarantee.EXACTLY_ONCE: frozenset(),
    }
)
"""What has to be found in some outcome of a verification; else its faults were too weak."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What a weaker guarantee should have shown and showed in none of its trials."""

    pipeline: str
    guarantee: Guarantee
    defects: tuple[Defect, ...]
    """In the order of `Defect`."""


def judge(guarantee: Guarantee, findings: Iterable[Finding]) -> Verdict:
    """Whether the guarantee held in a trial that found this."""
    return Verdict.KEPT if EXCLUDED[guarantee].isdisjoint(_defects(findings)) else Verdict.BROKEN


def judge_control(must_show: Collection[Defect], findings: Iterable[Finding]) -> Verdict:
    """Whether a control showed all that it had to. With nothing to show, it controls nothing."""
    is_shown = bool(must_show) and _defects(findings).issuperset(must_show)
    return Verdict.SHOWN if is_shown else Verdict.WEAK


def missing(outcomes: Iterable[Outcome]) -> list[Missing]:
    """What was not shown, per pipeline and guarantee, in the order in which these first came."""
    shown: dict[tuple[str, Guarantee], set[Defect]] = {}
    for outcome in outcomes:
        if outcome.control:
            continue  # it has a list of its own
        shown_here = shown.setdefault((outcome.pipeline, Guarantee(outcome.guarantee)), set())
        # A trial that broke off finds losses that no fault made.
        if outcome.verdict is not Verdict.FAILED:
            shown_here |= _defects(outcome.findings)
    return [
        Missing(pipeline, guarantee, tuple(d for d in Defect if d in absent))
        for (pipeline, guarantee), found in shown.items()
        if (absent := SHOWS[guarantee] - found)
    ]


def _defects(findings: Iterable[Finding]) -> set[Defect]:
    return {finding.defect for finding in findings}
