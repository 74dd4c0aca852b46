"""Between a pipeline and PostgreSQL: lets everything through, but for the answer to a COMMIT.

Only commits of rows and progress count: transactions that have locked the ledger's row. When a
chosen one has been handed to the server, its connection is cut, or the server killed, before the
answer can come back.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from sparkonce.verify.schedule import AtCommit

_HOST = "127.0.0.1"
_LOCKED, _COMMIT = b"FOR UPDATE", b"COMMIT\0"


class CommitProxy:
    """One for each trial; `reached` is called from a thread of its own."""

    def __init__(
        self, port: int, planned: Mapping[int, AtCommit], reached: Callable[[AtCommit], None]
    ) -> None:
        self._port = port
        self._planned = dict(planned)
        self._reached = reached
        self._commits = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server((_HOST, 0))
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="sparkonce-commits", daemon=True)

    def through(self, url: str) -> str:
        """The same URL, by way of this proxy."""
        parts = urlsplit(url)
        user, _, _ = parts.netloc.rpartition("@")
        where = f"{_HOST}:{self._listener.getsockname()[1]}"
        return urlunsplit(parts._replace(netloc=f"{user}@{where}" if user else where))

    def start(self) -> None:
        self._thread.start()

    def clear(self) -> None:
        with self._lock:
            self._planned.clear()

    def stop(self) -> None:
        # A listener that is only closed would go on waiting in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in list(self._open):
                _cut(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((_HOST, self._port))
            except OSError:
                client.close()  # as a server would that is not there
                continue
            with self._lock:
                self._open |= {client, server}
            for pump in (self._requests, self._answers):
                threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        is_locked = False
        with suppress(OSError):
            while data := client.recv(65_536):
                is_locked = is_locked or _LOCKED in data
                element = self._due() if is_locked and _COMMIT in data else None
                if _COMMIT in data:
                    is_locked = False
                if element is None:
                    server.sendall(data)
                    continue
                # Nothing may come back from here on; the server gets the request all the same.
                client.shutdown(socket.SHUT_RD)
                _cut(client)
                server.sendall(data)
                self._reached(element)
                break
        self._end(client, server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                client.sendall(data)
        self._end(client, server)

    def _due(self) -> AtCommit | None:
        with self._lock:
            self._commits += 1
            return self._planned.pop(self._commits, None)

    def _end(self, *ends: socket.socket) -> None:
        with self._lock:
            for each in ends:
                _cut(each)
                self._open.discard(each)


def _cut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
