"""The fault proxy: it stands between any Kafka client and the brokers, and breaks what it is told.

Clients are given its `bootstrap_servers`. It has a listener for each broker and puts the listeners'
addresses into what brokers say about themselves, so that clients stay with it, also for brokers
that appear later. Its event loop runs in a thread of its own; all public methods may be called
from any thread.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar

from sparkonce.errors import SparkonceError
from sparkonce.verify.network.faults import Fault, Rules
from sparkonce.verify.network.frames import Address
from sparkonce.verify.network.journal import Did, Event, Journal
from sparkonce.verify.network.link import Broker, Link, Shared
from sparkonce.verify.network.peer import CHUNK_BYTES, Peer

LISTEN_HOST: Final = "127.0.0.1"
BACKLOG: Final = 512

_T = TypeVar("_T")


class ProxyError(SparkonceError):
    """The proxy couldn't do its work, or a fault that was waited for didn't happen."""


class FaultProxy:
    """A proxy for PLAINTEXT and SASL_PLAINTEXT listeners; use it as a context manager."""

    def __init__(
        self, bootstrap_servers: str, *, faults: Sequence[Fault] = (), seed: int = 0
    ) -> None:
        self._upstream = [_parse_address(server) for server in bootstrap_servers.split(",")]
        self._rules = Rules(seed)
        for fault in faults:
            self._rules.add(fault)
        self._journal = Journal()
        self._shared = Shared(
            self._rules, self._journal, itertools.count(1), self._relocate, self._spawn
        )
        self._connection_numbers = itertools.count(1)
        self._accepting = True
        self._ports: dict[Address, int] = {}
        self._brokers: dict[Address, Broker] = {}
        self._servers: list[asyncio.Server] = []
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[Exception] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="sparkonce-fault-proxy"
        )
        self._thread.start()
        try:
            started.result()
        except OSError as error:
            self.stop()
            raise ProxyError(
                f"The fault proxy can't listen on {LISTEN_HOST}: {error}. It needs a free port "
                "there for each broker; check the limit of open files."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Cut all connections, end the thread, and report what went wrong in it, if anything."""
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._loop = self._thread = None
        if self._errors:
            raise ProxyError(
                "The fault proxy failed while it ran, so what was tested through it proves "
                "nothing. The causes follow; the first one usually explains the others."
            ) from ExceptionGroup("in the fault proxy", self._errors)

    @property
    def bootstrap_servers(self) -> str:
        """What clients are given in place of the brokers' own addresses."""
        return ",".join(f"{LISTEN_HOST}:{self._ports[address]}" for address in self._upstream)

    @property
    def log(self) -> list[Event]:
        """What happened so far, in order."""
        return self._journal.events()

    def add(self, fault: Fault) -> None:
        """Put a fault into force; it counts requests from now on."""
        self._call(lambda: self._rules.add(fault))

    def clear(self) -> None:
        """Take all faults out of force. What is being held or stalled by one stays so."""
        self._call(self._rules.clear)

    def fired(self, fault: Fault) -> int:
        """How many times the fault took effect."""
        return self._journal.count(Did.FIRED, fault)

    def came_to_pass(self, fault: Fault) -> int:
        """How many times it did all that it was to do: what is held back or copied has fired when
        it is kept, and is worth nothing unless it is delivered."""
        did = Did.DELIVERED if fault.is_delivered else Did.FIRED
        return self._journal.count(did, fault)

    def wait_fired(self, fault: Fault, timeout_s: float, *, times: int = 1) -> None:
        """Wait until the fault has taken effect so many times."""
        self._wait(Did.FIRED, fault, timeout_s, times)

    def wait_delivered(self, fault: Fault, timeout_s: float, *, times: int = 1) -> None:
        """Wait until what the fault held back or copied was answered on its own connection."""
        self._wait(Did.DELIVERED, fault, timeout_s, times)

    def cut_all(self) -> int:
        """Reset all connections now; how many there were."""

        def cut() -> int:
            for link in self._links:
                link.reset()
            return len(self._links)

        return self._call(cut)

    def stop_accepting(self) -> None:
        """Reset each new connection at once, as if no broker were there."""
        self._accepting = False

    def accept(self) -> None:
        """Accept connections again."""
        self._accepting = True

    def _wait(self, did: Did, fault: Fault, timeout_s: float, times: int) -> None:
        if not self._journal.wait(did, fault, times=times, timeout_s=timeout_s):
            seen = sum(event.did is Did.PASSED and event.api == fault.api for event in self.log)
            raise ProxyError(
                f"{fault!r} {did} {self._journal.count(did, fault)} times within {timeout_s} s, "
                f"{times} were waited for. {seen} {fault.api} requests passed: is the client "
                "given the proxy's address, and does it send what the fault waits for?"
            )

    def _call(self, action: Callable[[], _T]) -> _T:
        """Run in the loop's thread, where all that is mutable lives."""

        async def run() -> _T:
            return action()

        if self._loop is None:
            raise ProxyError("The fault proxy isn't running: enter it as a context manager first.")
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._report)
        self._stopping = asyncio.Event()
        try:
            for address in self._upstream:
                self._listen(address)
            started.set_result(None)
        except OSError as error:
            started.set_exception(error)
        await self._stopping.wait()
        await asyncio.sleep(0)  # what was spawned last has begun, so it cleans up when cancelled
        for server in self._servers:
            server.close()
        while self._tasks:  # a link that ends may have spawned a delivery
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _listen(self, address: Address) -> int:
        """The port of the listener for the broker at this address; opened if there is none."""
        if address not in self._ports:
            listener = socket.create_server((LISTEN_HOST, 0), backlog=BACKLOG)
            self._ports[address] = listener.getsockname()[1]
            self._brokers[address] = Broker(address)
            self._spawn(self._start_server(self._brokers[address], listener))
        return self._ports[address]

    async def _start_server(self, broker: Broker, listener: socket.socket) -> None:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(self._connect(broker, Peer(reader, writer)))

        server = await asyncio.start_server(
            accepted, sock=listener, limit=CHUNK_BYTES, start_serving=False
        )
        self._servers.append(server)
        await server.start_serving()

    def _relocate(self, node: int, address: Address) -> Address:
        port = self._listen(address)
        self._brokers[address].node = node
        return LISTEN_HOST, port

    async def _connect(self, broker: Broker, client: Peer) -> None:
        number = next(self._connection_numbers)
        try:
            if not self._accepting:
                raise ConnectionRefusedError
            upstream = await Peer.connect(broker.address)
        except (OSError, asyncio.CancelledError) as error:
            client.reset()
            self._journal.write(Event(Did.REFUSED, number, broker.node))
            if isinstance(error, OSError):
                return
            raise
        link = Link(number, broker, client, upstream, self._shared)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._errors.append(error)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or ProxyError(context["message"]))


def _parse_address(server: str) -> Address:
    host, _, port = server.strip().rpartition(":")
    if not host or not port.isdigit():
        raise ProxyError(f"{server!r} isn't a broker's address. Write host:port.")
    return host.strip("[]"), int(port)
