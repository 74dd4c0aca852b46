"""The client's loop: one thread that owns every connection and what is known of the cluster.

Two kinds of callers: the sender of record batches lives in the loop itself (`on_turn`), and
everybody else asks from their own thread and waits (`ask`, `refreshed`). So
the code that decides about transactions reads from top to bottom, and the hot path has no locks.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from kafka.protocol.metadata import MetadataRequest

from sparkonce.errors import BrokerError, FatalError, Unreachable
from sparkonce.wire.address import Address
from sparkonce.wire.cluster import Cluster
from sparkonce.wire.connection import Connection, Done, open_connection
from sparkonce.wire.link import Link
from sparkonce.wire.request import Message, Request
from sparkonce.wire.security import Security

_log = logging.getLogger("sparkonce.wire")
_METADATA_PAUSE_S = 0.02
_BROKEN_LOOK_S = 0.1
_STUCK_S = 30.0
"""A turn of the loop takes milliseconds."""


class Client:
    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        *,
        client_id: str,
        security: Security,
        request_timeout_ms: int,
        metadata_max_age_ms: int,
    ) -> None:
        self.cluster = Cluster()
        self.transaction_version = 0
        """Finalised in the cluster, as far as a broker has told; 2 has KIP-890's protection."""
        self.metadata_level = 0
        """The highest that any broker supports, as far as they were asked: says of which minor
        release the newest of them is."""
        self.on_turn: Callable[[float], float | None] = lambda now_s: None
        """Called on each turn of the loop; answers when it wants the next one at the latest."""
        self.on_end: Callable[[BrokerError], None] = lambda why: None
        """Called once, on the loop, with the reason why it ends; nothing is sent any more."""
        self.broken: FatalError | None = None
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._security = security
        self._request_timeout_s = request_timeout_ms / 1000
        self._metadata_age_s = metadata_max_age_ms / 1000
        self._features_epoch = -2
        self._links: dict[tuple[Address, int], Link] = {}
        self._topics: set[str] = set()
        self._refreshing = False
        self._refresh_at_s: float | None = None
        self._refresh_waiters: list[Future[Cluster]] = []
        self._rotation = itertools.count()
        self._calls: list[Callable[[], None]] = []
        self._calls_lock = threading.Lock()
        self._asleep = False
        self._stopping = False
        self._ended: BrokerError | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="sparkonce-client", daemon=True)
        self._thread.start()

    # -- from any thread ------------------------------------------------------------------

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` on the loop. Raises when there is none any more."""
        # Woken under the lock: the loop may find the call by itself, and stop, before the byte
        # is on its way.
        with self._calls_lock:
            if self._ended:
                raise self._ended
            self._calls.append(call)
            if self._asleep:
                self._asleep = False
                self._wake_out.send(b"\0")

    def do(self, call: Callable[[], None]) -> None:
        """Run `call` on the loop and wait until it is done."""
        done: Future[None] = Future()

        def run() -> None:
            call()
            done.set_result(None)

        self.post(run)
        deadline_s = time.monotonic() + _STUCK_S
        while not done.done():
            if self.broken:
                raise self.broken
            if time.monotonic() > deadline_s:
                raise _stuck()
            with contextlib.suppress(TimeoutError):
                done.result(_BROKEN_LOOK_S)

    def wake(self) -> None:
        """Let the loop take a turn: there is something new to send."""
        self.post(_nothing)

    def ask(self, address: Address, request: Request, timeout_s: float | None = None) -> Any:
        """Send a request and wait for its answer. Raises Unreachable when none comes."""
        wait_s = min(self._request_timeout_s, timeout_s or self._request_timeout_s)
        answer: Future[Any] = Future()
        self.post(lambda: self.send(address, request, answer.set_result, time.monotonic() + wait_s))
        return self._wait(answer, wait_s + 1.0, request.api)

    def ask_any(self, request: Request, timeout_s: float | None = None) -> Any:
        """The same, to whichever broker is at hand."""
        return self.ask(self._some_address(), request, timeout_s)

    def refreshed(self, topics: Iterable[str] = (), timeout_s: float = 30.0) -> Cluster:
        """Fetch the metadata anew, with these topics from now on, and wait for it."""
        wanted = set(topics)
        result: Future[Cluster] = Future()

        def start() -> None:
            self._topics |= wanted
            self._refresh_waiters.append(result)
            # An answer under way may be older than the question: ask again after it.
            self._refresh_at_s = time.monotonic()

        self.post(start)
        cluster = self._wait(result, timeout_s, "Metadata")
        assert isinstance(cluster, Cluster)
        return cluster

    def reasons(self) -> str:
        """Why brokers could not be reached, for a message."""
        links = list(self._links.values())
        told = dict.fromkeys(str(link.last_error) for link in links if link.last_error)
        return "; ".join(told) or "no broker answered"

    def refusals(self, kind: type[BrokerError]) -> bool:
        """Whether each of the bootstrap servers was refused with this kind of error."""
        links = [self._links.get((address, 0)) for address in self._bootstrap]
        return all(link is not None and isinstance(link.last_error, kind) for link in links)

    def close(self) -> None:
        with contextlib.suppress(BrokerError):
            self.post(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_STUCK_S)
            if self._thread.is_alive():
                raise _stuck()

    def _wait(self, answer: Future[Any], timeout_s: float, what: str) -> Any:
        try:
            result = answer.result(timeout_s)
        except TimeoutError:
            if self.broken:
                raise self.broken from None
            raise Unreachable(
                f"no answer to {what} in {timeout_s:.1f} s: {self.reasons()}"
            ) from None
        if isinstance(result, BrokerError):
            raise result
        return result

    # -- on the loop ------------------------------------------------------------------------

    def send(
        self, address: Address, request: Request, done: Done, deadline_s: float, channel: int = 0
    ) -> None:
        self._link(address, channel).send(request, done, deadline_s)

    def connection(self, address: Address, channel: int) -> Connection | None:
        """The open connection to `address`; if there is none, one will be opened.

        Channels are connections beside each other. A broker reads the next request of a
        connection only when it has answered the last one, so one alone leaves it idle half the
        time. Questions go over channel 0.
        """
        link = self._link(address, channel)
        if link.connection is None:
            link.want()
        return link.connection

    def refresh_soon(self) -> None:
        """Something points to stale metadata."""
        if self._refresh_at_s is None or self._refresh_at_s > time.monotonic() + _METADATA_PAUSE_S:
            self._refresh_at_s = time.monotonic() + _METADATA_PAUSE_S

    def _link(self, address: Address, channel: int) -> Link:
        key = (address, channel)
        if key not in self._links:
            self._links[key] = Link(address)
        return self._links[key]

    def _some_address(self) -> Address:
        """In turn, those that are open first; bootstrap servers too, should all have moved."""
        known = list(dict.fromkeys([*self.cluster.brokers.values(), *self._bootstrap]))
        links = self._links
        live = [a for a in known if (link := links.get((a, 0))) and link.connection]
        turn = next(self._rotation)
        # Now and then a closed one, so that a live connection to a sick broker is no trap.
        pool = live if live and turn % 4 else known
        return pool[turn % len(pool)]

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            self.broken = FatalError(f"the client's loop failed: {error!r}; close this producer")
            self.broken.__cause__ = error
            raise
        finally:
            self._end(self.broken or Unreachable("the client was closed"))

    def _end(self, why: BrokerError) -> None:
        """Close everything and leave nobody waiting, neither now nor later."""
        with self._calls_lock:
            self._ended = why
            late, self._calls = self._calls, []
            self._wake_in.close()
            self._wake_out.close()
        self._call_each([partial(self.on_end, why), *([] if self.broken else late)])
        now_s = time.monotonic()
        for link in self._links.values():
            closing = [link.connection.close] if link.connection else []
            self._call_each([*closing, partial(link.lost, why, now_s)])
        for waiter in self._refresh_waiters:
            waiter.set_result(why)  # type: ignore[arg-type]
        self._selector.close()

    def _call_each(self, calls: Iterable[Callable[[], None]]) -> None:
        """At the end, where one that fails must leave nobody else waiting."""
        for call in calls:
            try:
                call()
            except Exception:  # noqa: BLE001 - told in the log: it is a defect of ours
                _log.exception("while the client ended")

    def _turn(self) -> None:
        with self._calls_lock:
            calls, self._calls = self._calls, []
        for call in calls:
            call()
        if self._stopping:
            return
        now_s = time.monotonic()
        # Expired first: what comes back is for the sender's turn, and for the refresh.
        for link in list(self._links.values()):
            link.expire(now_s)
            self._tend(link, now_s)
        wakes = [self.on_turn(now_s), self._refresh_if_due(now_s)]
        for link in list(self._links.values()):
            if self._tend(link, now_s):
                wakes.append(now_s)  # it broke while it was written to: another turn
            wakes.append(link.next_wake_s())
        with self._calls_lock:
            self._asleep = not self._calls
        wake_s = min((wake for wake in wakes if wake is not None), default=None)
        pause_s = None if wake_s is None else max(0.0, wake_s - time.monotonic())
        for key, events in self._selector.select(pause_s if self._asleep else 0.0):
            if key.data is None:
                self._wake_in.recv(4096)
                continue
            connection: Connection = key.data.connection
            if connection is None:
                continue
            if events & selectors.EVENT_READ:
                connection.read()
            if events & selectors.EVENT_WRITE and not connection.broken:
                connection.write()
            self._tend(key.data, time.monotonic())
        self._asleep = False

    def _tend(self, link: Link, now_s: float) -> bool:
        """Keep the selector in step with the link; open it when it is due. Whether it broke."""
        connection = link.connection
        if connection is None:
            if link.claim_opening(now_s):
                name = f"sparkonce-open-{link.address}"
                threading.Thread(target=self._open, args=(link,), name=name, daemon=True).start()
        elif connection.broken:
            # Unregistered before it is closed: its descriptor's number may be given out again.
            self._selector.unregister(connection)
            connection.close()
            link.lost(connection.broken, now_s)
            self.refresh_soon()
            return True
        else:
            interest = selectors.EVENT_READ | (selectors.EVENT_WRITE * connection.wants_write)
            if self._selector.get_key(connection).events != interest:
                self._selector.modify(connection, interest, link)
        return False

    def _open(self, link: Link) -> None:
        timeout_s = min(10.0, self._request_timeout_s)
        try:
            connection = open_connection(link.address, self._security, self._client_id, timeout_s)
        except Exception as error:  # noqa: BLE001 - whoever waits for the connection is told
            refusal = (
                error
                if isinstance(error, BrokerError)
                else Unreachable(f"{link.address} could not be opened: {error!r}")
            )
            with contextlib.suppress(BrokerError):  # closed meanwhile: nobody wants to know
                self.post(lambda: self._refused(link, refusal))
            return
        try:
            self.post(lambda: self._opened(link, connection))
        except BrokerError:  # closed meanwhile, and with it goes what it asked for
            connection.close()

    def _refused(self, link: Link, error: BrokerError) -> None:
        link.lost(error, time.monotonic())
        # As long as it is out of reach, look whether others have taken over from it: right after
        # a crash the rest of the cluster still names it as a leader.
        self.refresh_soon()

    def _opened(self, link: Link, connection: Connection) -> None:
        versions = connection.versions
        if versions.features_epoch > self._features_epoch:
            self._features_epoch = versions.features_epoch
            self.transaction_version = versions.transaction_version
        self.metadata_level = max(self.metadata_level, versions.metadata_level_max)
        self._selector.register(connection, selectors.EVENT_READ, link)
        link.opened(connection)

    def _refresh_if_due(self, now_s: float) -> float | None:
        if self._refresh_at_s is None or self._refreshing:
            return None
        if now_s < self._refresh_at_s:
            return self._refresh_at_s
        self._refreshing = True
        self._refresh_at_s = now_s + self._metadata_age_s
        waiters, self._refresh_waiters = self._refresh_waiters, []
        topics = [{"name": name, "topic_id": None} for name in sorted(self._topics)]
        request = metadata_request(topics)

        def done(answer: Any) -> None:
            self._refreshing = False
            if isinstance(answer, BrokerError):
                self._refresh_waiters += waiters
                self.refresh_soon()
                return
            self.cluster = self.cluster.updated(answer)
            for waiter in waiters:
                waiter.set_result(self.cluster)

        self.send(self._some_address(), request, done, now_s + self._request_timeout_s)
        return None

    def _stop(self) -> None:
        self._stopping = True


def _stuck() -> FatalError:
    return FatalError(
        f"the client's loop has not gone on for {_STUCK_S:g} s: something that was called on it "
        "does not return (an outcome of produce_turn, perhaps). Start a new producer"
    )


def _nothing() -> None:
    """Only the turn that comes with it is wanted."""


def metadata_request(topics: list[dict[str, Any]]) -> Message:
    return Message(
        MetadataRequest,
        9,
        12,
        {
            "topics": [MetadataRequest.MetadataRequestTopic(**topic) for topic in topics],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
    )
