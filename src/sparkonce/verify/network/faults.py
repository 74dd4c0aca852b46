"""Faults as values, and the rules that decide which request meets which fault.

The verifier hands faults to the proxy; the proxy asks `Rules` about each request as it comes. A
fault says what happens and to which requests. It is frozen, its repr is the code that makes it
again, and all chance comes from a seed: a failed run is replayed by its faults and its seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Final, Literal

from kafka.protocol.api_key import ApiKey

from sparkonce.verify.network.frames import RequestHead

ANY_API: Final = "*"
TRANSACTION_APIS: Final = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "Produce",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
)


Until = str | tuple[str, ...] | None
"""What a late request or answer waits for: an answer to this API, or to one of these."""


def apis_of(until: Until) -> tuple[str, ...]:
    """As names, however it was said."""
    if until is None:
        return ()
    return (until,) if isinstance(until, str) else until


class ShortRepr:
    """A dataclass shown as the code that makes it again: what has its default is left out."""

    __slots__ = ()

    def __repr__(self) -> str:
        told = [
            f"{field.name}={value!r}"
            for field in fields(self)  # type: ignore[arg-type]  # it is one
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"{type(self).__name__}({', '.join(told)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fault(ShortRepr):
    """Something that goes wrong with requests of one API.

    Requests that match are counted per proxy, from 1. The fault hits the `nth` of them and then
    each `every`-th, each with `probability`, until it has hit `times` (None: no limit). So the
    default is the first matching request, once; `every=3, times=None` is each third. With
    `lasting_s` it hits every matching request for so long from its first hit on, as if who
    answers them were away.
    """

    api: str = field(kw_only=False)
    nth: int = 1
    every: int = 1
    probability: float = 1.0
    times: int | None = 1
    node: int | None = None  # only requests to this broker
    client_id: str | None = None  # only requests of clients that call themselves so
    transactional_id: str | None = None  # only requests that carry this transactional id
    lasting_s: float = 0.0

    needs_answer: ClassVar[bool] = False  # acts on the answer, so on nothing if there is none

    @property
    def is_delivered(self) -> bool:
        """Whether its effect comes with what the proxy brings to the broker by itself."""
        return False

    def __post_init__(self) -> None:
        for api in (self.api, *apis_of(getattr(self, "until", None))):
            if api != ANY_API and api not in ApiKey.__members__:
                raise ValueError(
                    f"{self!r} names the API {api!r}, which Kafka doesn't have. Write it as Kafka "
                    f"does, for example Produce or EndTxn, or {ANY_API!r} for any."
                )
        if self.nth < 1 or self.every < 1 or not 0 <= self.probability <= 1:
            raise ValueError(f"{self!r}: nth and every start at 1, probability lies in 0 to 1.")

    def matches(self, head: RequestHead, node: int | None) -> bool:
        """Whether this request counts for the fault."""
        return (
            self.api in (ANY_API, head.api)
            and (head.answered or not self.needs_answer)
            and self.node in (None, node)
            and self.client_id in (None, head.client_id)
            and self.transactional_id in (None, head.transactional_id)
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoseRequest(Fault):
    """The request never reaches the broker; the client's connection is reset.

    `silent`: it isn't reset; the broker just hears nothing more on this connection.
    """

    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoseResponse(Fault):
    """The broker acts, its answer never comes, the client's connection is reset right then.

    `silent`: it isn't reset; the client just hears nothing more on this connection.
    """

    silent: bool = False
    needs_answer: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CutMidFrame(Fault):
    """A part of the frame, its length drawn from the seed, is passed on; then a reset."""

    direction: Literal["request", "response"] = "request"

    def matches(self, head: RequestHead, node: int | None) -> bool:
        if self.direction == "response" and not head.answered:
            return False
        return Fault.matches(self, head, node)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CorruptRequest(Fault):
    """A bit of the last record is flipped on the way: the broker refuses the batch it is in.

    Only Produce has a checksum to see it by. The broker keeps the connection and goes on with what
    comes behind, which for the same partition is out of order then. Its answer comes late by
    `seconds`, so that the client has sent something behind it.
    """

    seconds: float = 0.2
    needs_answer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        if self.api != "Produce":
            raise ValueError(
                f"{self!r}: no broker would see it; of all requests only Produce has a checksum."
            )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DuplicateRequest(Fault):
    """The broker gets the request and a copy of it; the copy's answer is dropped.

    The copy follows at once on the same connection, or comes over a connection of the proxy's own
    (`own_connection`; always so for a late copy). It can be late by `seconds`, counted from the
    next answer to a request of the API `until` if that is given, or of one of several.
    """

    own_connection: bool = False
    seconds: float = 0.0
    until: Until = None

    @property
    def is_delivered(self) -> bool:
        return self.own_connection or bool(self.seconds) or self.until is not None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DelayRequest(Fault):
    """The request reaches the broker late; how late is said as for `DuplicateRequest`.

    It holds up what follows on its connection. With `cut`, the client's connection is reset at
    once instead, so that the client tries again, and the held request is delivered over a
    connection of the proxy's own: possibly long after the transaction that it was part of.
    """

    seconds: float = 0.0
    until: Until = None
    cut: bool = False

    @property
    def is_delivered(self) -> bool:
        return self.cut


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DelayResponse(Fault):
    """The answer, and what follows it on its connection, reaches the client late."""

    seconds: float = 0.0
    until: Until = None
    needs_answer: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reorder(Fault):
    """The request is overtaken: it waits until one of its API on another connection is answered.

    If none is within `seconds`, it goes on all the same.
    """

    seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stall(Fault):
    """From this request on, nothing passes on its connection, either way, for some seconds."""

    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault that a request meets, and the chance number that goes with it (0 to 1)."""

    fault: Fault
    chance: float


class Rules:
    """The faults in force, with what each has seen. At most one fault hits a request."""

    def __init__(self, seed: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seed = seed
        self._clock = clock
        self._added = 0
        self._rules: list[_Rule] = []

    def add(self, fault: Fault) -> None:
        # A generator per rule: what a rule draws for its third request doesn't depend on how
        # much traffic of other kinds came between, which no two runs have alike.
        self._rules.append(_Rule(fault, random.Random(f"{self._seed}/{self._added}")))
        self._added += 1

    def clear(self) -> None:
        self._rules.clear()

    def hit(self, head: RequestHead, node: int | None) -> Hit | None:
        """The fault that this request meets. Every rule counts it; the first added wins."""
        now_s = self._clock()
        hits = [rule for rule in self._rules if rule.counts(head, node, now_s)]
        if not hits:
            return None
        hits[0].hit(now_s)
        return Hit(hits[0].fault, hits[0].chance)


@dataclass(slots=True)
class _Rule:
    fault: Fault
    rng: random.Random
    seen: int = 0
    hits: int = 0
    chance: float = 0.0
    ends_s: float = 0.0

    def hit(self, now_s: float) -> None:
        self.hits += 1
        if self.hits == 1:
            self.ends_s = now_s + self.fault.lasting_s

    def counts(self, head: RequestHead, node: int | None, now_s: float) -> bool:
        fault = self.fault
        if not fault.matches(head, node):
            return False
        self.seen += 1
        # Drawn for each request that matches, used or not, so that the n-th draw is the n-th's.
        luck, self.chance = self.rng.random(), self.rng.random()
        if fault.lasting_s and self.hits:
            return now_s < self.ends_s
        return (
            self.seen >= fault.nth
            and (self.seen - fault.nth) % fault.every == 0
            and luck < fault.probability
            and (fault.times is None or self.hits < fault.times)
        )


def draw_faults(
    seed: int, count: int, *, apis: Sequence[str] = TRANSACTION_APIS, within: int = 20
) -> tuple[Fault, ...]:
    """Faults drawn from a seed, each for one of the first `within` requests of some API."""
    rng = random.Random(seed)
    drawn: list[Fault] = []
    for _ in range(count):
        api, nth = rng.choice(apis), rng.randint(1, within)
        kinds: list[Fault] = [
            LoseRequest(api, nth=nth),
            LoseResponse(api, nth=nth),
            CutMidFrame(api, nth=nth, direction="request"),
            CutMidFrame(api, nth=nth, direction="response"),
            DuplicateRequest(api, nth=nth, own_connection=rng.random() < 0.5),
            DelayRequest(api, nth=nth, until="EndTxn", seconds=rng.random(), cut=True),
            DelayResponse(api, nth=nth, seconds=rng.random()),
            Reorder(api, nth=nth, seconds=rng.random()),
            Stall(api, nth=nth, seconds=rng.random()),
        ]
        drawn.append(rng.choice(kinds))
    return tuple(drawn)
