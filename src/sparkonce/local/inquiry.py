"""One question to one broker: a connection, a request, its answer.

What readiness and the cluster's verbs are built on. A client library would choose the broker by
itself and wait for the ones that are paused; here it matters whom is asked and for how long.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

from sparkonce.local.ports import HOST

_CLIENT_ID = "sparkonce-local"


def ask(port: int, request: Any, version: int, timeout_s: float = 5.0) -> Any:
    """Send a `kafka.protocol` request to the broker at `port` and decode its answer.

    Raises OSError (TimeoutError and ConnectionError among them) when there is no answer.
    """
    request.API_VERSION = version
    request.with_header(correlation_id=1, client_id=_CLIENT_ID)
    with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        (size,) = struct.unpack(">i", _receive(connection, 4))
        payload = _receive(connection, size)
    return request.header.get_response_class().decode(payload, header=True)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("the broker closed the connection before it had answered")
        received += chunk
    return bytes(received)
