"""HTML and SVG as values: text becomes safe by construction, not by remembering to escape it.

What trials tell holds whatever brokers, jobs and users' own pipelines said; the page is made of
`element`s only, and these escape all that isn't `Html` already.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final

_VOID: Final = frozenset({"meta", "wbr"})
_HOUR_S: Final = 3600.0


class Html(str):
    """Markup that is safe as it is: made by `element` and `joined` alone."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | float | bool) -> Html:
    """An element with its children; `class_` is written class, and `x_y` as x-y.

    An attribute that is False is left out, one that is True has no value.
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{joined(children)}</{tag}>")


def joined(parts: Iterable[str], between: str = "") -> Html:
    return Html(text(between).join(text(part) for part in parts))


def definitions(entries: Iterable[tuple[str, str]]) -> Html:
    """A list of names and what is said of each."""
    pairs = [(element("dt", name), element("dd", said)) for name, said in entries]
    return element("dl", *(part for pair in pairs for part in pair))


def text(value: str, chars_max: int | None = None) -> Html:
    """Escaped, unless it is markup; cut where it is too long for a page."""
    if isinstance(value, Html):
        return value
    # Half a character (of a file name, say) can't be written as UTF-8.
    whole = value.encode("utf-8", "replace").decode("utf-8")
    if chars_max is not None and len(whole) > chars_max:
        whole = f"{whole[:chars_max]}… ({len(whole) - chars_max:,} more characters)"
    return Html(html.escape(whole))


def counted(count: int, noun: str) -> str:
    """`1 trial`, `1,200 trials`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def span(seconds: float) -> str:
    """A time that people can compare: `42 s`, `12 min`, `1.4 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 1.5 * _HOUR_S else f"{seconds / _HOUR_S:.1f} h"


def _attribute(name: str, value: str | float | bool) -> str:
    if value is False:
        return ""
    spelled = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {spelled}"
    shown = value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
    return f' {spelled}="{text(shown)}"'
