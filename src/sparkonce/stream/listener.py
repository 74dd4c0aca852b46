"""The driver's port for its tasks: who may speak there, and how lines come in and go out.

One thread serves all connections and never waits for any of them. A connection is a stranger until
its first line has shown the secret. Strangers are cheap and few: they have a bounded time, a
bounded line and bounded numbers, and the oldest of them makes room for the newest, since a task
speaks at once. Only `Peer.receive` and `Peer.flush` touch a peer's socket.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from typing import Any, Final, Protocol

from sparkonce.errors import SparkonceError
from sparkonce.stream.lines import decoded, encoded, keep_alive

STRANGERS_MAX: Final = 256
SECRET_WITHIN_S: Final = 10.0
FIRST_LINE_BYTES_MAX: Final = 4096
_LINE_BYTES_MAX: Final = 1024 * 1024
_RECEIVE_BYTES: Final = 64 * 1024
_WAITING_MAX: Final = 1024
"""Connections that the system keeps for us until they are accepted."""
_ACCEPTED_AT_ONCE: Final = 64
_TICK_S: Final = 1.0
_CLOSED_WITHIN_S: Final = 10.0
_log = logging.getLogger("sparkonce.stream")


class Host(Protocol):
    """Who answers, always on the listener's thread."""

    def admit(self, peer: Peer, said: dict[str, Any]) -> bool:
        """A stranger's first line. Whether it belongs here."""

    def hear(self, peer: Peer, said: dict[str, Any]) -> None:
        """A further line of one who was admitted."""

    def lost(self, peer: Peer) -> None:
        """One who was admitted is gone, or was hung up on."""

    def tick(self, now_s: float) -> None:
        """At least once a second."""


class Peer:
    """One connection, from its acceptance to its end; for the listener's thread alone."""

    def __init__(self, line: socket.socket, since_s: float, active: set[Peer]) -> None:
        self.line = line
        self.since_s = since_s
        self.is_stranger = True
        self.is_ending = False
        self._active = active
        self._inbox = bytearray()
        self._outbox = bytearray()

    def tell(self, what: dict[str, Any]) -> None:
        """Sent as soon as the line takes it."""
        self._outbox += encoded(what)
        self._active.add(self)

    def hang_up(self) -> None:
        """Once all that was told is on its way."""
        self.is_ending = True
        self._active.add(self)

    def receive(self) -> bool:
        """Take in what has come; False where nothing more will."""
        room = self._line_bytes_max + 1 - len(self._inbox)
        try:
            data = self.line.recv(min(_RECEIVE_BYTES, room))
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._inbox += data
        return bool(data)

    def next_line(self) -> bytes | None:
        """Raises ValueError for one that is too long."""
        end = self._inbox.find(b"\n")
        if end > self._line_bytes_max or (end < 0 and len(self._inbox) > self._line_bytes_max):
            raise ValueError("too long a line")
        if end < 0:
            return None
        line = bytes(self._inbox[:end])
        del self._inbox[: end + 1]
        return line

    def flush(self) -> bool:
        """Send what the line takes; False where it takes nothing any more."""
        try:
            while self._outbox:
                del self._outbox[: self.line.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    @property
    def has_more(self) -> bool:
        """Whether something waits for room in the line."""
        return bool(self._outbox)

    @property
    def _line_bytes_max(self) -> int:
        return FIRST_LINE_BYTES_MAX if self.is_stranger else _LINE_BYTES_MAX


class TaskListener:
    """`close` it; whoever is connected then is hung up on."""

    def __init__(self, bind: str, port: int, host: Host) -> None:
        self._host = host
        self._socket = socket.create_server((bind, port), backlog=_WAITING_MAX)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._peers: set[Peer] = set()
        # Those that have something to send, or to be hung up on.
        self._active: set[Peer] = set()
        # In the order in which they came.
        self._strangers: dict[Peer, None] = {}
        self._accepts_again_s: float | None = None
        self._is_stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sparkonce-desk", daemon=True)
        self._thread.start()

    @property
    def peer_count(self) -> int:
        """Connections at this moment, strangers among them."""
        return len(self._peers)

    def check(self) -> None:
        """Raises where it listens no more."""
        if self._failure is not None:
            raise SparkonceError(
                f"the driver no longer listens for its tasks at port {self.port}: "
                f"{self._failure!r}. Start the query again, and report this"
            ) from self._failure

    def wake(self) -> None:
        """Let `Host.tick` be called now."""
        with contextlib.suppress(OSError):  # full, and so awake; or closed
            self._wake_out.send(b"\0")

    def close(self) -> None:
        self._is_stopping = True
        self.wake()
        self._thread.join(_CLOSED_WITHIN_S)

    # -- on its own thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - told to the driver, by its next attempt
            self._failure = error
            _log.exception("the driver's port for its tasks is closed")
        finally:
            for peer in self._peers:
                peer.line.close()
            self._peers.clear()
            for each in (self._selector, self._socket, self._wake_in, self._wake_out):
                each.close()

    def _turn(self) -> None:
        is_asked_for = False
        for key, events in self._selector.select(_TICK_S):
            if key.fileobj is self._socket:
                is_asked_for = True
            elif key.fileobj is self._wake_in:
                self._wake_in.recv(4096)
            elif key.data in self._peers:
                if events & selectors.EVENT_WRITE:
                    self._active.add(key.data)
                if events & selectors.EVENT_READ:
                    self._serve(key.data)
        now_s = time.monotonic()
        # Behind those that have spoken: they are no strangers any more.
        if is_asked_for:
            self._accept(now_s)
        elif self._accepts_again_s is not None and now_s >= self._accepts_again_s:
            self._accepts_again_s = None
            self._selector.register(self._socket, selectors.EVENT_READ)
        for stranger in list(self._strangers):
            if now_s - stranger.since_s < SECRET_WITHIN_S:
                break
            self._lose(stranger)
        self._host.tick(now_s)
        while self._active:
            self._settle(self._active.pop())

    def _accept(self, now_s: float) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                line, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptor is left for anybody: strangers give theirs back.
                _log.warning("a task could not be heard: %s", error)
                for stranger in list(self._strangers):
                    self._lose(stranger)
                self._selector.unregister(self._socket)
                self._accepts_again_s = now_s + _TICK_S
                return
            line.setblocking(False)
            keep_alive(line)
            peer = Peer(line, now_s, self._active)
            self._peers.add(peer)
            self._strangers[peer] = None
            self._selector.register(line, selectors.EVENT_READ, peer)
            if len(self._strangers) > STRANGERS_MAX:
                self._lose(next(iter(self._strangers)))

    def _serve(self, peer: Peer) -> None:
        is_there = peer.receive()
        try:
            while peer in self._peers and (line := peer.next_line()) is not None:
                self._heard(peer, decoded(line))
        except Exception as error:  # noqa: BLE001 - one who speaks like that ends nobody else's line
            if not peer.is_stranger:
                _log.warning("a task was hung up on, for what it said: %r", error)
            is_there = False
        if not is_there:
            self._lose(peer)

    def _heard(self, peer: Peer, said: dict[str, Any] | None) -> None:
        if said is None:
            raise ValueError("no line of ours")
        if not peer.is_stranger:
            self._host.hear(peer, said)
        elif self._host.admit(peer, said):
            peer.is_stranger = False
            del self._strangers[peer]
        else:
            self._lose(peer)

    def _settle(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        if not peer.flush() or (peer.is_ending and not peer.has_more):
            self._lose(peer)
            return
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE * peer.has_more)
        if self._selector.get_key(peer.line).events != interest:
            self._selector.modify(peer.line, interest, peer)

    def _lose(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._strangers.pop(peer, None)
        self._selector.unregister(peer.line)
        peer.line.close()
        if not peer.is_stranger:
            self._host.lost(peer)
