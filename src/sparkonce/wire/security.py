"""How a connection is protected: the one seam where TLS and SASL come in.

Every connection passes through `Security.protect` right after TCP connects and before the first
Kafka request. Only PLAINTEXT is offered for now; asking for more is an error, never a plaintext
connection in its place.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sparkonce.errors import ConfigError
from sparkonce.wire.address import Address


@dataclass(frozen=True, slots=True)
class Security:
    protocol: str = "PLAINTEXT"

    NAMES: ClassVar[tuple[str, ...]] = ("security.protocol",)

    @classmethod
    def owns(cls, name: str) -> bool:
        return name in cls.NAMES or name.startswith(("ssl.", "sasl."))

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> Security:
        protocol = str(settings.get("security.protocol", "PLAINTEXT")).upper()
        if protocol != "PLAINTEXT":
            raise ConfigError(
                f"security.protocol={protocol} is not supported by this version: "
                "use a PLAINTEXT listener on a trusted network, or wait for TLS and SASL"
            )
        extra = [name for name in settings if name.startswith(("ssl.", "sasl."))]
        if extra:
            raise ConfigError(
                f"{extra[0]} is set but security.protocol is PLAINTEXT, which would ignore it: "
                f"leave {extra[0]} out"
            )
        return cls(protocol)

    def protect(self, plain: socket.socket, address: Address) -> socket.socket:
        """The socket to speak Kafka on; TLS wraps it here, SASL authenticates here."""
        del address  # TLS checks the certificate against it
        return plain
