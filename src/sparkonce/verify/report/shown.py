"""What a verification has shown: for each guarantee, in how many trials it held under a fault.

A trial in which no fault came to pass, one that broke off, a control and a pipeline that refused
to go on show nothing of a guarantee: they are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sparkonce.guarantees import Guarantee
from sparkonce.verify.outcome import Outcome


def shown(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Trials by guarantee, the strongest first; with 0 for one that was tried and not shown.

    exactly_once is always among them: a run without it says nothing of it, and has to say so.
    """
    tried = {Guarantee.EXACTLY_ONCE.value}
    held: Counter[str] = Counter()
    for outcome in outcomes:
        if not outcome.control:
            tried.add(outcome.guarantee)
        held[outcome.guarantee] += outcome.is_proof
    return {each.value: held[each.value] for each in reversed(Guarantee) if each.value in tried}


def shown_words(held: Mapping[str, int]) -> str:
    """`exactly_once 41, at_least_once 6, none: nothing shown`."""
    return ", ".join(
        f"{guarantee} {trials:,}" if trials else f"{guarantee}: nothing shown"
        for guarantee, trials in held.items()
    )


def under_faults_s(outcomes: Iterable[Outcome]) -> float:
    """How long pipelines worked under faults, all trials together."""
    return round(sum(outcome.under_faults_s for outcome in outcomes), 1)
