"""Lines of JSON between tasks and the driver, over TCP that notices when the other side is gone.

A line may be silent for as long as a task computes. Without a sign of life in between, a NAT
forgets it, and a machine that vanished would be waited for until something is sent.
"""

from __future__ import annotations

import json
import socket
from typing import Any, Final

GONE_AFTER_S: Final = 30
"""How long the other side may leave a sign of life unanswered."""
_PROBES: Final = 5


def encoded(what: dict[str, Any]) -> bytes:
    return json.dumps(what).encode() + b"\n"


def decoded(line: bytes) -> dict[str, Any] | None:
    """None for what nobody says who belongs here."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def keep_alive(line: socket.socket, gone_after_s: int = GONE_AFTER_S) -> None:
    """Let the kernel ask for signs of life, and end the line where none comes; send at once."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe_s = max(1, gone_after_s // _PROBES)
    for name, value in (
        ("TCP_KEEPIDLE", probe_s),
        ("TCP_KEEPINTVL", probe_s),
        ("TCP_KEEPCNT", _PROBES - 1),
        # For what was sent and isn't acknowledged: no probes are sent then.
        ("TCP_USER_TIMEOUT", gone_after_s * 1000),
    ):
        if hasattr(socket, name):  # not every system has all of them
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
