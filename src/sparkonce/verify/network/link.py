"""One client's connection through the proxy, and the broker's connection behind it.

Two pumps carry frames, one each way. The pump of requests asks the rules about each frame and does
what a fault says; the pump of responses matches each frame with its request. A broker answers in
the order of the requests on a connection, so a queue is enough, and the correlation id is checked.
Frames that no fault touches are streamed, not collected.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkonce.verify.network import frames
from sparkonce.verify.network.faults import (
    CorruptRequest,
    CutMidFrame,
    DelayRequest,
    DelayResponse,
    DuplicateRequest,
    Fault,
    Hit,
    LoseRequest,
    LoseResponse,
    Reorder,
    Rules,
    Stall,
    apis_of,
)
from sparkonce.verify.network.frames import SIZE_BYTES, Address, FrameError, Relocate, RequestHead
from sparkonce.verify.network.journal import Did, Event, Journal
from sparkonce.verify.network.peer import Peer, deliver


@dataclass(frozen=True, slots=True)
class Shared:
    """What all links of a proxy have in common."""

    rules: Rules
    journal: Journal
    request_numbers: Iterator[int]
    relocate: Relocate
    spawn: Callable[[Coroutine[Any, Any, None]], None]  # what it starts outlives the link


@dataclass(slots=True)
class Broker:
    """The real broker that a link leads to."""

    address: Address
    node: int | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    number: int
    head: RequestHead
    start: bytes  # what has been read of its frame
    left: int  # how many bytes of the frame are still to be read
    hit: Hit | None

    @property
    def fault(self) -> Fault | None:
        return self.hit.fault if self.hit else None


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request at the broker. `is_copy`: the client didn't send it, its answer is dropped."""

    request: _Request
    is_copy: bool


@dataclass(frozen=True, slots=True)
class _Delay:
    answer: asyncio.Future[None] | None
    seconds: float

    async def over(self) -> None:
        if self.answer:
            await self.answer
        await asyncio.sleep(self.seconds)


class _Cut(Exception):
    """A fault ends the link with a reset on both sides."""


@dataclass(slots=True, eq=False)
class Link:
    """A client's connection, the broker's, and the two pumps between them."""

    number: int
    broker: Broker
    client: Peer
    upstream: Peer
    shared: Shared
    _pending: deque[_Pending] = field(default_factory=deque)
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _mute: bool = False  # the client hears nothing any more

    async def run(self) -> None:
        """Carry frames until either side ends, or a fault ends both."""
        self._flowing.set()
        self._log(Did.CONNECTED)
        pumps = [asyncio.create_task(self._requests()), asyncio.create_task(self._responses())]
        failures: list[BaseException] = []
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            failures = await _end(pumps)
            if failures:
                self.reset()
            await asyncio.gather(self.client.close(), self.upstream.close())
        except asyncio.CancelledError:
            self.reset()
            await _end(pumps)
            raise
        finally:
            self._log(Did.CLOSED)
        for failure in failures:
            # Connections that break are what this is about; anything else is a mistake.
            if not isinstance(failure, (_Cut, OSError, asyncio.IncompleteReadError)):
                raise failure

    def reset(self) -> None:
        """Cut both connections now."""
        self.client.reset()
        self.upstream.reset()

    async def _requests(self) -> None:
        while prefix := await self.client.next_frame():
            size = frames.frame_size(prefix)
            start = await self.client.read(min(size, frames.PEEK_BYTES))
            await self._flowing.wait()
            head = frames.parse_request(start)
            hit = self.shared.rules.hit(head, self.broker.node)
            number = next(self.shared.request_numbers)
            request = _Request(number, head, prefix + start, size - len(start), hit)
            if refusal := frames.refuse_api_versions(head):
                await self.client.send(refusal)
            else:
                await self._meet(request)

    async def _meet(self, request: _Request) -> None:
        """Pass the request on, as far as the fault that it meets lets it."""
        match request.fault:
            case LoseRequest(silent=silent):
                self._log(Did.FIRED, request)
                if not silent:
                    raise _Cut
                await self.client.swallow()
            case CutMidFrame(direction="request"):
                await self._cut_in(await self._whole(request), self.upstream, request)
            case CorruptRequest():
                await self._forward(request, frames.corrupt(await self._whole(request)))
                self._log(Did.FIRED, request)
            case DuplicateRequest() as fault:
                frame = await self._whole(request)
                await self._forward(request, frame)
                if fault.is_delivered:
                    self.shared.spawn(self._deliver(frame, request, self._delay(request)))
                else:
                    self._expect(request, is_copy=True)
                    await self.upstream.send(frame)
                self._log(Did.FIRED, request)
            case DelayRequest(cut=True):
                frame = await self._whole(request)
                self.shared.spawn(self._deliver(frame, request, self._delay(request)))
                self._log(Did.FIRED, request)
                raise _Cut
            case DelayRequest():
                frame = await self._whole(request)  # the client may be gone when it goes on
                delay = self._delay(request)
                self._log(Did.FIRED, request)
                await delay.over()
                await self._forward(request, frame)
            case Reorder(seconds=seconds):
                overtaken = self.shared.journal.answer_to(
                    request.head.api, after_request=request.number, not_on_connection=self.number
                )
                frame = await self._whole(request)
                self._log(Did.FIRED, request)
                await asyncio.wait([overtaken], timeout=seconds)
                await self._forward(request, frame)
            case Stall(seconds=seconds):
                self._flowing.clear()
                asyncio.get_running_loop().call_later(seconds, self._flowing.set)
                self._log(Did.FIRED, request)
                await self._flowing.wait()
                await self._forward(request)
            case _:
                await self._forward(request)

    async def _responses(self) -> None:
        while prefix := await self.upstream.next_frame():
            size = frames.frame_size(prefix)
            start = prefix + await self.upstream.read(min(size, frames.PEEK_BYTES))
            left = SIZE_BYTES + size - len(start)
            await self._flowing.wait()
            pending = self._answered(start)
            request = pending.request
            heard = not pending.is_copy and not self._mute and await self._is_heard(request)
            is_cut = isinstance(request.fault, CutMidFrame)
            if not heard:
                await self.upstream.carry(left, None, self._flowing)
            elif is_cut or frames.is_rewritten(request.head):
                frame = start + await self.upstream.read(left)
                if frames.is_rewritten(request.head):
                    relocate = self.shared.relocate
                    frame = frames.rewrite_response(request.head, frame[SIZE_BYTES:], relocate)
                if is_cut:
                    await self._cut_in(frame, self.client, request)
                await self.client.send(frame)
            else:
                await self.client.send(start)
                await self.upstream.carry(left, self.client, self._flowing)

    async def _is_heard(self, request: _Request) -> bool:
        """Whether the client gets this answer, which may be late."""
        match request.fault:
            case LoseResponse(silent=silent):
                self._log(Did.FIRED, request)
                if not silent:
                    raise _Cut
                self._mute = True
                return False
            case DelayResponse():
                delay = self._delay(request)
                self._log(Did.FIRED, request)
                await delay.over()
            case CorruptRequest(seconds=seconds):
                await asyncio.sleep(seconds)
        return True

    def _expect(self, request: _Request, *, is_copy: bool = False) -> None:
        if request.head.answered:
            self._pending.append(_Pending(request, is_copy))

    def _answered(self, start: bytes) -> _Pending:
        """The request that a response which starts so answers."""
        (correlation_id,) = struct.unpack_from(">i", start, SIZE_BYTES)
        if not self._pending or self._pending[0].request.head.correlation_id != correlation_id:
            raise FrameError(
                f"The broker at {self.broker.address} answers request {correlation_id}, which "
                "isn't the next in line. Is it a Kafka broker, with a PLAINTEXT listener?"
            )
        pending = self._pending.popleft()
        self._log(Did.ANSWERED, pending.request)
        return pending

    async def _whole(self, request: _Request) -> bytes:
        return request.start + await self.client.read(request.left)

    async def _forward(self, request: _Request, frame: bytes | None = None) -> None:
        """Pass the request to the broker: as it comes, or as the frame that was collected."""
        self._expect(request)
        await self.upstream.send(frame or request.start)
        if frame is None:
            await self.client.carry(request.left, self.upstream, self._flowing)
        self._log(Did.PASSED, request)

    async def _cut_in(self, frame: bytes, to: Peer, request: _Request) -> None:
        chance = request.hit.chance if request.hit else 0.0
        await to.send_all(frame[: 1 + int(chance * (len(frame) - 1))])
        self._log(Did.FIRED, request)
        raise _Cut

    def _delay(self, request: _Request) -> _Delay:
        """Start to watch for what the fault waits for, before anything else can happen."""
        fault = request.fault
        assert isinstance(fault, (DuplicateRequest, DelayRequest, DelayResponse))
        if fault.until is None:
            return _Delay(None, fault.seconds)
        awaited = apis_of(fault.until)
        answer = self.shared.journal.answer_to(*awaited, after_request=request.number)
        return _Delay(answer, fault.seconds)

    async def _deliver(self, frame: bytes, request: _Request, delay: _Delay) -> None:
        """Bring a frame to the broker over a connection of our own, and drop its answer."""
        did = Did.UNDELIVERED
        try:
            await delay.over()
            await deliver(self.broker.address, frame, is_answered=request.head.answered)
            did = Did.DELIVERED
        except (OSError, asyncio.IncompleteReadError):
            pass  # the broker is gone: said in the journal
        finally:
            self._log(did, request)

    def _log(self, did: Did, request: _Request | None = None) -> None:
        event = Event(did, self.number, self.broker.node)
        if request:
            by_fault = did in (Did.FIRED, Did.DELIVERED, Did.UNDELIVERED)
            fault = request.fault if by_fault else None
            event = replace(event, request=request.number, head=request.head, fault=fault)
        self.shared.journal.write(event)


async def _end(pumps: Sequence[asyncio.Task[None]]) -> list[BaseException]:
    """Stop the pumps; what they failed with."""
    for pump in pumps:
        pump.cancel()
    ends = await asyncio.gather(*pumps, return_exceptions=True)
    return [end for end in ends if end and not isinstance(end, asyncio.CancelledError)]
