"""Lies before a PostgreSQL as a pooler does: notes down what clients begin with, and refuses them
where PgBouncer would."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

TAKEN = {
    "user",
    "database",
    "client_encoding",
    "application_name",
    "datestyle",
    "timezone",
    "standard_conforming_strings",
}
"""What PgBouncer takes of what libpq may send when a connection begins; to others it says
`unsupported startup parameter`, unless its operator lists them in ignore_startup_parameters."""
_STARTUP = 196608
_CANCEL = 80877102


class Pooler:
    def __init__(self, port: int, says: str | None = None) -> None:
        """With `says`, no client is let in, and each is told so."""
        self._to = port
        self._says = says
        self.startups: list[dict[str, str]] = []
        self.refused: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]

    def __enter__(self) -> Pooler:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # or accept would not notice
        self._server.close()

    def before(self, url: str) -> str:
        """The URL of a server, by way of this one."""
        return url.replace(f":{self._to}/", f":{self.port}/")

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            length, code, rest = _first(client)
            while code not in (_STARTUP, _CANCEL):
                client.sendall(b"N")  # no TLS here
                length, code, rest = _first(client)
            if code == _STARTUP and self._is_refused(client, rest):
                return
            with socket.create_connection(("127.0.0.1", self._to)) as server:
                server.sendall(struct.pack("!ii", length, code) + rest)
                other = threading.Thread(target=_pass_on, args=[server, client], daemon=True)
                other.start()
                _pass_on(client, server)
                other.join()

    def _is_refused(self, client: socket.socket, rest: bytes) -> bool:
        words = rest.decode().rstrip("\0").split("\0")
        given = dict(zip(words[::2], words[1::2], strict=True))
        self.startups.append(given)
        foreign = [name for name in given if name.lower() not in TAKEN]
        self.refused += foreign
        says = f"unsupported startup parameter: {foreign[0]}" if foreign else self._says
        if says is not None:
            fields = b"SFATAL\0VFATAL\0C08P01\0M" + says.encode() + b"\0\0"
            client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)
        return says is not None


def _first(client: socket.socket) -> tuple[int, int, bytes]:
    length, code = struct.unpack("!ii", _exactly(client, 8))
    return length, code, _exactly(client, length - 8)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = source.recv(count - len(found))
        if not more:
            raise OSError("closed")
        found += more
    return found
