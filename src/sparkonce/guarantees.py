"""The four promises, and the producer settings that each of them needs.

A guarantee is an order of two writes, data and progress (see docs/guarantees.md); here is only
what it asks of the producer. Settings a user leaves out are derived from it; a setting that
contradicts it is refused in `options`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class Guarantee(enum.Enum):
    """What may happen to a record when something fails."""

    NONE = "none"
    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"

    @property
    def may_lose(self) -> bool:
        return self in (Guarantee.NONE, Guarantee.AT_MOST_ONCE)

    @property
    def may_repeat(self) -> bool:
        return self in (Guarantee.NONE, Guarantee.AT_LEAST_ONCE)


NEEDS: Mapping[Guarantee, Mapping[str, str]] = MappingProxyType(
    {
        Guarantee.NONE: MappingProxyType({"enable.idempotence": "false", "acks": "0"}),
        # Nothing is sent again: a resend of a record whose acknowledgement was lost repeats it.
        Guarantee.AT_MOST_ONCE: MappingProxyType({"enable.idempotence": "false", "retries": "0"}),
        Guarantee.AT_LEAST_ONCE: MappingProxyType({"acks": "all"}),
        Guarantee.EXACTLY_ONCE: MappingProxyType({"enable.idempotence": "true", "acks": "all"}),
    }
)
