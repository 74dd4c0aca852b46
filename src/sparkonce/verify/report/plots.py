"""The plots of the page: what was lost and repeated, by guarantees and by controls, and where the
trials were run.

SVG drawn here, coloured by the page's style sheet. Every bar has its figure beside it: colour and
length are for the eye, the words are what counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sparkonce.verify.outcome import Defect, Outcome, Verdict
from sparkonce.verify.report.grid import strength, totals
from sparkonce.verify.report.markup import Html, counted, element, text

_WIDTH, _LEFT, _PLOT = 720.0, 170.0, 370.0
_STACK: Final = 200.0
"""Shorter than the other's bars: their figures need more room."""
_BAR: Final = 16.0
_LOG_FROM: Final = 100
"""Linear below: with larger figures, what is small beside them would be invisible."""
_NAME_CHARS_MAX: Final = 24
_TITLE_CHARS_MAX: Final = 90
_ORDER: Final = (Verdict.KEPT, Verdict.SHOWN, Verdict.WEAK, Verdict.FAILED, Verdict.BROKEN)


def damage_plot(outcomes: Iterable[Outcome]) -> Html:
    """Lost and repeated records by guarantee, without the controls: these promise nothing."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.control and _is_counted(outcome):
            groups.setdefault(outcome.guarantee, []).append(outcome)
    ordered = {name: groups[name] for name in sorted(groups, key=strength)}
    return _damage("Lost and repeated records, by guarantee", ordered)


def controls_plot(outcomes: Iterable[Outcome]) -> Html:
    """The same of each control, with what it has to show; nothing where there is none."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.control and _is_counted(outcome):
            groups.setdefault(outcome.pipeline, []).append(outcome)
    if not groups:
        return Html()
    caption = "Controls: lost and repeated records of what is made worse on purpose"
    return _damage(caption, groups, is_control=True)


def _is_counted(outcome: Outcome) -> bool:
    # A trial that broke off finds losses that no fault made, one without any fault finds nothing.
    if outcome.verdict is Verdict.FAILED:
        return False
    return outcome.control or not outcome.is_without_fault


def _damage(
    caption: str, groups: Mapping[str, Sequence[Outcome]], *, is_control: bool = False
) -> Html:
    damage = {name: sum(map(totals, group), Counter[Defect]()) for name, group in groups.items()}
    shown = (Defect.LOST, Defect.REPEATED)
    most = max((found[defect] for found in damage.values() for defect in shown), default=0)
    drawn: list[Html] = []
    top = 4.0
    for name, group in groups.items():
        records = f"of {sum(each.records for each in group):,} records"
        if is_control:
            # Above its bars: it is longer than what fits beside them.
            due = ", ".join(dict.fromkeys(d.value for each in group for d in each.must_show))
            title = text(f"{name} (has to show: {due or 'a defect'})", _TITLE_CHARS_MAX)
            drawn.append(element("text", title, class_="name", x=0, y=top + _BAR))
            top += _BAR + 8
            drawn.append(_small(records, top + _BAR))
        else:
            drawn.append(_name(name, top + _BAR))
            drawn.append(_small(records, top + 2 * _BAR))
        for defect in shown:
            count = damage[name][defect]
            drawn.append(_damage_bar(defect, count, top, _length(count, most)))
            top += _BAR + 5
        top += 16
    logarithmic = most >= _LOG_FROM
    note = "The scale is logarithmic; 0 is 0." if logarithmic else ""
    axis = [] if is_control else [_zero(top - 12)]  # it would go through the names
    return _figure(caption, note, [*axis, *drawn], top)


def families_plot(outcomes: Sequence[Outcome]) -> Html:
    """Trials over families of faults, with their verdicts."""
    families: dict[str, Counter[Verdict]] = {}
    for outcome in outcomes:
        families.setdefault(outcome.family, Counter())[outcome.verdict] += 1
    most = max((verdicts.total() for verdicts in families.values()), default=1)
    drawn: list[Html] = []
    top = 4.0
    for family, verdicts in families.items():
        drawn.append(_name(family, top + _BAR - 3))
        drawn += _stacked(verdicts, top, _STACK / most)
        top += _BAR + 16
    return _figure("Trials and their verdicts, by family of faults", "", drawn, top)


def _length(count: int, most: int) -> float:
    if count == 0:
        return 0.0
    share = math.log1p(count) / math.log1p(most) if most >= _LOG_FROM else count / most
    return max(share * _PLOT, 2.0)


def _damage_bar(defect: Defect, count: int, top: float, length: float) -> Html:
    bar = element(
        "rect",
        class_=f"bar {defect.name.lower()}",
        x=_LEFT,
        y=top,
        width=length,
        height=_BAR,
        rx=2,
    )
    label = element(
        "text",
        element("tspan", f"{count:,}", class_="figure"),
        f" {defect.value}",
        x=_LEFT + length + 8,
        y=top + _BAR - 4,
        class_="none" if count == 0 else "some",
    )
    return element("g", bar, label)


def _stacked(verdicts: Mapping[Verdict, int], top: float, unit: float) -> list[Html]:
    drawn: list[Html] = []
    x = _LEFT
    present = [verdict for verdict in _ORDER if verdicts.get(verdict)]
    for verdict in present:
        # A single broken trial among thousands has to be seen.
        width = max(verdicts[verdict] * unit, 3.0)
        title = element("title", counted(verdicts[verdict], "trial") + f" {verdict.value}")
        drawn.append(
            element(
                "rect",
                title,
                class_=f"bar {verdict.value}",
                x=x,
                y=top,
                width=width,
                height=_BAR,
            )
        )
        x += width + 1
    words = ", ".join(f"{verdicts[verdict]:,} {verdict.value}" for verdict in present)
    drawn.append(element("text", words, x=x + 7, y=top + _BAR - 4, class_="some"))
    return drawn


def _zero(bottom: float) -> Html:
    return element("line", class_="axis", x1=_LEFT, x2=_LEFT, y1=0, y2=max(bottom, 0))


def _name(words: str, y: float) -> Html:
    return element("text", text(words, _NAME_CHARS_MAX), class_="name", x=0, y=y)


def _small(words: str, y: float) -> Html:
    return element("text", words, class_="small", x=0, y=y)


def _figure(caption: str, note: str, drawn: Sequence[Html], height: float) -> Html:
    svg = element(
        "svg", *drawn, viewBox=f"0 0 {_WIDTH:.0f} {height:.0f}", role="img", aria_label=caption
    )
    said = element("figcaption", caption, *([" ", element("small", note)] if note else []))
    return element("figure", said, element("div", svg, class_="wide"))
