"""How anything is asked of brokers and coordinators: until the answer is a definite one.

Lost connections, moved coordinators and markers still being written are no answers; the question
is asked again, for `max.block.ms` at most. A code that asking again won't change is raised as the
error that says how to react.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from kafka.protocol.metadata import FindCoordinatorRequest

from sparkonce.errors import (
    AbortableError,
    BrokerError,
    FatalError,
    Reaction,
    Unreachable,
    explain,
    reaction,
)
from sparkonce.options import ProducerOptions
from sparkonce.wire import Address, Client, Message, NotKafka

_PAUSE_S: Final = 0.002
_PAUSE_MAX_S: Final = 0.2

Codes = Callable[[Any], int | list[int]]
"""The error codes in an answer."""


class CoordinatorKind(IntEnum):
    """As FindCoordinator tells them apart."""

    GROUP = 0
    TRANSACTION = 1


Place = tuple[CoordinatorKind, str]
"""Which coordinator is asked: the kind, and the group or the transactional id."""


class EpochRefused(BrokerError):
    """Fenced or timed out: `Ownership.why_refused` asks the coordinator which."""

    def __init__(self, message: str, code: int, *, is_repeat: bool = False) -> None:
        super().__init__(message, code)
        self.is_repeat = is_repeat
        """The question had been sent before, without an answer: that one may have been taken."""


class NotYet(BrokerError):
    """No definite answer this time: asking again may bring one."""


@dataclass(frozen=True, slots=True)
class _Found:
    node_id: int
    address: Address


class Deadline:
    """`max.block.ms` from now, with growing pauses between two questions."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._ends_s = time.monotonic() + timeout_ms / 1000
        self._pause_s = _PAUSE_S

    @property
    def left_s(self) -> float:
        return self._ends_s - time.monotonic()

    def pause(self) -> None:
        time.sleep(max(0.0, min(self._pause_s, self.left_s)))
        self._pause_s = min(self._pause_s * 2, _PAUSE_MAX_S)

    def passed(self, what: str, why: object) -> Unreachable:
        return Unreachable(
            f"{what} had no definite answer within max.block.ms={self.timeout_ms}: {why}"
        )


class Questions:
    """Asks in the caller's thread; the client's loop sends."""

    def __init__(self, client: Client, options: ProducerOptions) -> None:
        self.max_block_ms = options.max_block_ms
        self.heard_at_s = time.monotonic()
        """When a transaction coordinator answered last."""
        self._client = client
        self._found: dict[Place, _Found] = {}

    def deadline(self) -> Deadline:
        return Deadline(self.max_block_ms)

    def until_definite(
        self,
        what: str,
        place: Place | None,
        request: Message | Callable[[int], Message],
        codes: Codes,
    ) -> Any:
        """Ask until the answer is definite. `place` None: any broker will do; where the request
        depends on the coordinator's node id, it is made of that."""
        deadline = self.deadline()
        last: BrokerError | None = None
        while deadline.left_s > 0:
            try:
                return self.once(what, place, request, codes, deadline.left_s)
            except NotYet as error:
                last = error
                deadline.pause()
            except EpochRefused as refused:
                raise EpochRefused(str(refused), refused.code, is_repeat=bool(last)) from None
        raise deadline.passed(what, last or self._client.reasons())

    def once(
        self,
        what: str,
        place: Place | None,
        request: Message | Callable[[int], Message],
        codes: Codes,
        left_s: float,
    ) -> Any:
        """Ask a single time. Raises NotYet where that was not enough."""
        try:
            if place is None:
                assert isinstance(request, Message)
                answer = self._client.ask_any(request, left_s)
            else:
                found = self._find(place, left_s)
                asked = request if isinstance(request, Message) else request(found.node_id)
                answer = self._client.ask(found.address, asked, left_s)
        except Unreachable as error:
            if self._client.refusals(NotKafka):
                raise FatalError(self._client.reasons()) from error
            self._forget(place)
            raise NotYet(str(error), error.code) from error
        if place is not None and place[0] is CoordinatorKind.TRANSACTION:
            self.heard_at_s = time.monotonic()
        told = codes(answer)
        bad = [code for code in (told if isinstance(told, list) else [told]) if code]
        if not bad:
            return answer
        _raise_if_definite(what, bad)
        if any(reaction(code) is not Reaction.RESEND for code in bad):
            self._forget(place)
        raise NotYet(f"{what} answered {explain(bad[0])}", bad[0])

    def _forget(self, place: Place | None) -> None:
        if place is not None:
            self._found.pop(place, None)

    def _find(self, place: Place, timeout_s: float) -> _Found:
        """Where the coordinator is; asking also makes the cluster create its internal topics."""
        if place not in self._found:
            kind, name = place
            request = Message(
                FindCoordinatorRequest, 4, 6, {"key_type": int(kind), "coordinator_keys": [name]}
            )
            told = self._client.ask_any(request, timeout_s).coordinators[0]
            if told.error_code:
                _raise_if_definite(f"FindCoordinator for {name!r}", [told.error_code])
                raise Unreachable(
                    f"{name!r} has no coordinator yet: {explain(told.error_code)}", told.error_code
                )
            self._found[place] = _Found(told.node_id, Address(told.host, told.port))
        return self._found[place]


def _raise_if_definite(what: str, codes: list[int]) -> None:
    """Raise for a code that asking again won't change; the gravest first."""
    for kind, error in (
        (Reaction.FATAL, FatalError),
        (Reaction.EPOCH, EpochRefused),
        (Reaction.ABORT, AbortableError),
        (Reaction.OUT_OF_ORDER, AbortableError),
    ):
        for code in codes:
            if reaction(code) is kind:
                raise error(f"{what} was refused: {explain(code)}", code)
