"""Outcomes added up: a row for each pipeline and promise, a column for each family of faults.

`matrix` draws it on a terminal while trials run, `page` draws it in HTML afterwards: both say the
same words and mean the same by a colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from sparkonce.guarantees import Guarantee
from sparkonce.verify.outcome import Defect, Outcome, Verdict
from sparkonce.verify.promises import missing
from sparkonce.verify.report.shown import shown

_STRENGTH = {guarantee.value: place for place, guarantee in enumerate(Guarantee)}
_DEFECTS = list(Defect)


class Tone(StrEnum):
    """What a colour says."""

    CLEAN = "clean"
    EXPECTED = "expected"
    """Something was found, and the guarantee allows it or the control had to find it."""
    UNPROVEN = "unproven"
    """A control found nothing, a trial didn't come to its end, or met no fault on its way."""
    BROKEN = "broken"


TONES: Mapping[Verdict, Tone] = {
    Verdict.KEPT: Tone.CLEAN,
    Verdict.SHOWN: Tone.EXPECTED,
    Verdict.WEAK: Tone.UNPROVEN,
    Verdict.FAILED: Tone.UNPROVEN,
    Verdict.BROKEN: Tone.BROKEN,
}


class Standing(Enum):
    """What all outcomes together say; the worst of them decides."""

    BROKEN = "A promise was broken"
    WEAK = "The controls are too weak"
    FAILED = "Not every trial came to its end"
    UNSHOWN = "Nothing was shown"
    """Nothing was broken, in trials in which no fault came to pass."""
    PARTLY = "No promise was broken, and not every one was put to the test"
    KEPT = "Every promise was kept"
    EMPTY = "No trial has been run yet"


@dataclass(frozen=True, slots=True)
class Row:
    pipeline: str
    promise: str
    """The guarantee, as `promise_of` names it."""


@dataclass(slots=True)
class Cell:
    """The trials of one pipeline and promise under one family of faults."""

    defects: dict[Verdict, Counter[Defect]] = field(default_factory=dict)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    without_fault: int = 0
    """Kept, and no fault came to pass."""
    refused: int = 0
    """Kept under a fault, by a pipeline that refused to go on."""

    def add(self, outcome: Outcome) -> None:
        self.verdicts[outcome.verdict] += 1
        if outcome.verdict is Verdict.KEPT:
            self.without_fault += outcome.is_without_fault
            self.refused += outcome.refused and not outcome.is_without_fault
        # A trial that broke off finds losses that no fault made.
        if outcome.verdict is not Verdict.FAILED:
            self.defects.setdefault(outcome.verdict, Counter()).update(totals(outcome))

    @property
    def trials(self) -> int:
        return self.verdicts.total()

    @property
    def clean(self) -> int:
        """Trials that came to their end under a fault, and in which nothing was wrong."""
        return self.trials - self.verdicts[Verdict.FAILED] - self.without_fault - self.refused

    @property
    def is_weak(self) -> bool:
        """Whether its controls found nothing. Chance may spare one trial, not all of them."""
        return bool(self.verdicts[Verdict.WEAK]) and not self.verdicts[Verdict.SHOWN]

    @property
    def found(self) -> Counter[Defect]:
        """What broke the promise if it is broken, else all that was found."""
        if self.verdicts[Verdict.BROKEN]:
            return self.defects[Verdict.BROKEN]
        return sum(self.defects.values(), Counter())

    @property
    def tone(self) -> Tone:
        if self.verdicts[Verdict.BROKEN]:
            return Tone.BROKEN
        if self.is_weak or self.verdicts[Verdict.FAILED]:
            return Tone.UNPROVEN
        if self.found or self.verdicts[Verdict.SHOWN]:
            return Tone.EXPECTED
        if self.clean:
            return Tone.CLEAN
        return Tone.EXPECTED if self.refused else Tone.UNPROVEN

    @property
    def parts(self) -> list[str]:
        """What was found, a word or two for each."""
        said: list[str] = []
        if self.verdicts[Verdict.BROKEN]:
            first, *more = name_defects(self.found) or ["broken"]
            said += [f"✗ {first}", *more]
        elif self.is_weak:
            said.append("too weak")
        elif self.found:
            said += name_defects(self.found)
        elif self.clean:
            said.append(f"✓ {self.clean:,}")
        if self.refused:
            said.append(f"refused {self.refused:,}")
        if self.without_fault:
            said.append(f"{self.without_fault:,} without any fault")
        if failed := self.verdicts[Verdict.FAILED]:
            said.append(f"failed {failed:,}")
        return said

    @property
    def words(self) -> str:
        return ", ".join(self.parts)

    @property
    def trial_words(self) -> str:
        """In how many trials; empty where the words above say it already."""
        plural = "trial" if self.trials == 1 else "trials"
        if broken := self.verdicts[Verdict.BROKEN]:
            return f"{broken:,} of {self.trials:,} {plural}"
        return "" if self.tone is Tone.CLEAN else f"{self.trials:,} {plural}"


class Grid:
    """Cells by row and family. Rows go from the weakest promise of a pipeline to its strongest."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self.cells: dict[tuple[Row, str], Cell] = {}
        self.outcomes: list[Outcome] = []
        for outcome in outcomes:
            self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.cells.setdefault(place_of(outcome), Cell()).add(outcome)

    @property
    def rows(self) -> list[Row]:
        seen = list(dict.fromkeys(row for row, _ in self.cells))
        pipelines = list(dict.fromkeys(row.pipeline for row in seen))
        return sorted(seen, key=lambda row: (pipelines.index(row.pipeline), strength(row.promise)))

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(family for _, family in self.cells))

    @property
    def not_shown(self) -> dict[Row, str]:
        """Rows of weaker guarantees, and what these have not shown in any trial (`promises`)."""
        return {
            Row(each.pipeline, each.guarantee.value): ", ".join(each.defects)
            for each in missing(self.outcomes)
        }

    @property
    def standing(self) -> Standing:
        if not self.cells:
            return Standing.EMPTY
        cells = self.cells.values()
        if any(cell.verdicts[Verdict.BROKEN] for cell in cells):
            return Standing.BROKEN
        if self.not_shown or any(cell.is_weak for cell in cells):
            return Standing.WEAK
        failed = any(cell.verdicts[Verdict.FAILED] for cell in cells)
        if failed:
            return Standing.FAILED
        held = shown(self.outcomes).values()
        if not any(held):
            return Standing.UNSHOWN
        return Standing.KEPT if all(held) else Standing.PARTLY


def place_of(outcome: Outcome) -> tuple[Row, str]:
    """Where in the grid it is counted."""
    return Row(outcome.pipeline, promise_of(outcome)), outcome.family


def promise_of(outcome: Outcome) -> str:
    """The guarantee. A control made by weakening exactly_once is never counted under that name."""
    weakened = outcome.control and outcome.guarantee == Guarantee.EXACTLY_ONCE.value
    return f"{outcome.guarantee} (control)" if weakened else outcome.guarantee


def strength(promise: str) -> tuple[float, str]:
    """To sort promises by: a control before what it controls, unknown ones last."""
    guarantee = promise.removesuffix(" (control)")
    place = _STRENGTH.get(guarantee, len(_STRENGTH))
    return (place if guarantee == promise else place - 0.5, promise)


def totals(outcome: Outcome) -> Counter[Defect]:
    """How many of each defect. What several readers saw is one defect, not several."""
    by_reader: dict[Defect, Counter[str]] = {}
    for finding in outcome.findings:
        by_reader.setdefault(finding.defect, Counter())[finding.reader] += finding.count
    most = {defect: max(counts.values()) for defect, counts in by_reader.items()}
    return Counter({defect: count for defect, count in most.items() if count > 0})


def name_defects(found: Mapping[Defect, int]) -> list[str]:
    """`lost 3`, `repeated 1`; none for nothing."""
    return [f"{defect.value} {found[defect]:,}" for defect in sorted(found, key=_DEFECTS.index)]


def found_words(outcome: Outcome) -> str:
    """What was found in one trial: `lost 3, repeated 1`; empty for nothing."""
    return ", ".join(name_defects(totals(outcome)))
