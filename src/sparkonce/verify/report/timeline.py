"""The story of a trial as a picture: lives as bars, all else as marks over an axis of seconds.

A lane for each kind of happening, so that what meets what can be seen. `trials` puts it above
the same story in words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparkonce.verify.outcome import Happening, Outcome
from sparkonce.verify.report.markup import Html, element, text

MARKS_MAX: Final = 120
"""Of one story: more would be a smear, and the page would grow."""
_ENDS: Final = ("kill", "pause", "end")
_NAMES: Final = {
    "fault": "faults",
    "broker": "brokers",
    "checkpoint": "checkpoint",
    "reader": "readers",
    "log": "its log",
}
_WIDTH, _LEFT, _RIGHT = 720.0, 92.0, 18.0
_LANE, _TOP, _AXIS = 26.0, 8.0, 26.0
_TICKS_MAX: Final = 8
_TITLE_CHARS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Life:
    """From a start of the pipeline to whatever ended it."""

    start_s: float
    end_s: float
    text: str
    ended_by: str
    """`kill`, `pause` or `end`; empty if nothing did."""


def lives(story: Sequence[Happening], until_s: float) -> list[Life]:
    """A kill or a pause ends the life that began last, an end all that are left."""
    done: list[Life] = []
    open_: list[Happening] = []

    def close(born: Happening, at_s: float, kind: str) -> None:
        done.append(Life(born.at_s, max(at_s, born.at_s), born.text, kind))

    for happening in sorted(story, key=lambda each: each.at_s):
        if happening.kind == "life":
            open_.append(happening)
        elif happening.kind == "end":
            while open_:
                close(open_.pop(), happening.at_s, "end")
        elif happening.kind in _ENDS and open_:
            close(open_.pop(), happening.at_s, happening.kind)
    while open_:
        close(open_.pop(), until_s, "")
    return sorted(done, key=lambda life: life.start_s)


def timeline(outcome: Outcome) -> Html:
    """Empty for a trial without a story."""
    story = [each for each in outcome.story if math.isfinite(each.at_s)][:MARKS_MAX]
    if not story:
        return Html()
    until_s = max(outcome.duration_s, *(each.at_s for each in story), 0.1)
    scale = _Scale(until_s)
    drawn: list[Html] = []
    lanes = _lanes(lives(story, until_s))
    for number, lane in enumerate(lanes):
        middle = _TOP + _LANE * (number + 0.5)
        drawn.append(_label("lives" if number == 0 else "", middle))
        drawn += [_bar(life, middle, scale) for life in lane]
    told = {each.kind for each in story} - {"life", *_ENDS}
    # The same order in every story, so that one can be compared with the next.
    kinds = [*(kind for kind in _NAMES if kind in told), *sorted(told - _NAMES.keys())]
    for number, kind in enumerate(kinds, start=len(lanes)):
        middle = _TOP + _LANE * (number + 0.5)
        drawn.append(_label(_NAMES.get(kind, kind), middle))
        drawn.append(_rule(middle))
        drawn += [_mark(each, middle, scale) for each in story if each.kind == kind]
    bottom = _TOP + _LANE * (len(lanes) + len(kinds)) + 4
    return element(
        "svg",
        *_axis(scale, bottom),
        *drawn,
        class_="timeline",
        viewBox=f"0 0 {_WIDTH:.0f} {bottom + _AXIS:.0f}",
        role="img",
        aria_label=f"Timeline of trial {outcome.number}; the same in words below",
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    until_s: float

    def x(self, at_s: float) -> float:
        share = min(max(at_s / self.until_s, 0.0), 1.0)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> list[float]:
        """At 1, 2 or 5 of some power of ten."""
        power = 10.0 ** math.floor(math.log10(self.until_s / _TICKS_MAX))
        step = next(
            power * one for one in (1, 2, 5, 10, 20) if self.until_s / (power * one) <= _TICKS_MAX
        )
        return [step * n for n in range(int(self.until_s / step) + 1)]


def _lanes(every: Sequence[Life]) -> list[list[Life]]:
    """One after the other in one lane; those that overlap, such as a zombie's, in several."""
    lanes: list[list[Life]] = []
    for life in every:
        free = next((lane for lane in lanes if lane[-1].end_s <= life.start_s), None)
        if free is None:
            lanes.append(free := [])
        free.append(life)
    return lanes


def _axis(scale: _Scale, bottom: float) -> list[Html]:
    drawn: list[Html] = []
    for tick in scale.ticks():
        x = scale.x(tick)
        drawn.append(element("line", class_="grid", x1=x, x2=x, y1=_TOP, y2=bottom))
        said = f"{tick:g} s"
        drawn.append(element("text", said, x=x, y=bottom + 16, text_anchor="middle"))
    return drawn


def _label(words: str, middle: float) -> Html:
    return element("text", text(words, 14), class_="lane", x=0, y=middle + 4) if words else Html()


def _rule(middle: float) -> Html:
    return element("line", class_="rule", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=middle, y2=middle)


def _bar(life: Life, middle: float, scale: _Scale) -> Html:
    left, right = scale.x(life.start_s), scale.x(life.end_s)
    fate = {"kill": ", then killed", "pause": ", then paused", "end": ", to its end"}
    said = f"{life.start_s:.1f} to {life.end_s:.1f} s: {life.text}{fate.get(life.ended_by, '')}"
    bar = element(
        "rect",
        class_="life",
        x=left,
        y=middle - 7,
        width=max(right - left, 2),
        height=14,
        rx=3,
    )
    cross = f"M{right - 4:.1f} {middle - 4:.1f}l8 8m0 -8l-8 8"
    pause = f"M{right - 2:.1f} {middle - 6:.1f}v12m4 0v-12"
    shape = {"kill": cross, "pause": pause}.get(life.ended_by)
    ending = element("path", d=shape, class_=f"ends {life.ended_by}") if shape else Html()
    return element("g", element("title", text(said, _TITLE_CHARS_MAX)), bar, ending)


def _mark(happening: Happening, middle: float, scale: _Scale) -> Html:
    x = scale.x(happening.at_s)
    title = element("title", text(f"{happening.at_s:.1f} s: {happening.text}", _TITLE_CHARS_MAX))
    shapes = {
        "fault": f"M{x:.1f} {middle - 6:.1f}l6 6l-6 6l-6 -6z",
        "broker": f"M{x - 5:.1f} {middle - 5:.1f}h10v10h-10z",
    }
    if shape := shapes.get(happening.kind):
        return element("path", title, d=shape, class_=f"mark {happening.kind}")
    return element("circle", title, class_="mark", cx=x, cy=middle, r=4)
