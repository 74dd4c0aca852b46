"""Shrinking: from a schedule that breaks a promise to a short one that still does.

The campaign calls it when a trial came out broken; `fails` then runs a trial with fewer elements,
which takes seconds to minutes, so the number of calls is what is saved here. The idea is delta
debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): leave
out large pieces first, then smaller ones, down to single elements. Pure, but for what `fails` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(
    elements: Sequence[T], fails: Callable[[tuple[T, ...]], bool], budget: int
) -> tuple[T, ...]:
    """The shortest part of `elements`, in their order, that was found to fail.

    `elements` are taken to fail; they are not tried again. With budget enough, no single element
    of the result can be left out any more. Nothing is returned that wasn't seen to fail: a failure
    that depends on luck may end with a longer schedule than it needs, never with a wrong one.
    """
    kept = tuple(range(len(elements)))
    # By index, for elements may be equal, and need not be hashable.
    tried: set[tuple[int, ...]] = {kept}
    size = max(1, len(kept) // 2)
    while True:
        before = kept
        start = 0
        while start < len(kept):
            shorter = kept[:start] + kept[start + size :]
            if shorter in tried:
                start += size
                continue
            if len(tried) > budget:
                return tuple(elements[index] for index in kept)
            tried.add(shorter)
            if fails(tuple(elements[index] for index in shorter)):
                kept = shorter  # what came behind the piece has moved to `start`
            else:
                start += size
        if size == 1 and kept == before:
            return tuple(elements[index] for index in kept)
        size = max(1, min(size, len(kept)) // 2)
