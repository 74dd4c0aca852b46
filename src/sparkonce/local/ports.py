"""Free ports on the loopback address, chosen so that a restarted broker finds its own again.

They lie below the range from which the kernel takes ports for outgoing connections: in there, a
client of another broker could sit on a killed broker's port when it wants to come back.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

HOST = "127.0.0.1"

_LOWEST, _HIGHEST = 20_000, 32_000


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        # As Java's server sockets do: old connections that linger don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def free_ports(count: int, avoid: Collection[int] = ()) -> list[int]:
    """Different ports that nobody listens on; random, so that two clusters rarely meet."""
    candidates = random.SystemRandom().sample(range(_LOWEST, _HIGHEST), _HIGHEST - _LOWEST)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if port not in avoid and is_free(port):
            found.append(port)
    return found
