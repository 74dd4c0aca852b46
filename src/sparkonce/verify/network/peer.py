"""One TCP connection of the proxy, to a client or to a broker: frames in, bytes out, or a reset.

The only file of the proxy that touches sockets' bytes; what they mean is decided in `link`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sparkonce.verify.network.frames import SIZE_BYTES, Address, frame_size

CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __post_init__(self) -> None:
        # asyncio does this only for sockets that were made with an explicit protocol number.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def _socket(self) -> socket.socket:
        connection: socket.socket = self.writer.get_extra_info("socket")
        return connection

    @classmethod
    async def connect(cls, address: Address) -> Peer:
        return cls(*await asyncio.open_connection(*address, limit=CHUNK_BYTES))

    async def next_frame(self) -> bytes | None:
        """The next frame's length prefix; None at the end of the stream."""
        try:
            return await self.reader.readexactly(SIZE_BYTES)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None

    async def read(self, size: int) -> bytes:
        return await self.reader.readexactly(size)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_all(self, data: bytes) -> None:
        """Send, and return when the kernel has all of it, so that a reset can't take it back."""
        self.writer.transport.set_write_buffer_limits(high=0)
        await self.send(data)

    async def carry(self, size: int, to: Peer | None, flowing: asyncio.Event) -> None:
        """Pass on the next bytes as they come, while it flows; or drop them."""
        while size:
            chunk = await self.reader.read(min(size, CHUNK_BYTES))
            if not chunk:
                raise ConnectionResetError("the connection ended in the middle of a frame")
            size -= len(chunk)
            await flowing.wait()
            if to:
                await to.send(chunk)

    async def swallow(self) -> None:
        """Read to the end of the stream and do nothing with it."""
        while await self.reader.read(CHUNK_BYTES):
            pass

    def reset(self) -> None:
        """Close with RST, as a crashed process's or a cut network's connection ends."""
        if self._socket.fileno() >= 0:
            linger_none = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_none)
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close when all that was sent has left."""
        self.writer.close()
        with suppress(OSError):  # the other end was faster; it is closed all the same
            await self.writer.wait_closed()


async def deliver(address: Address, frame: bytes, *, is_answered: bool) -> None:
    """Bring a frame to a broker over a connection of its own, and drop the answer."""
    broker = await Peer.connect(address)
    try:
        await broker.send_all(frame)
        if is_answered:
            await broker.read(frame_size(await broker.read(SIZE_BYTES)))
    finally:
        await broker.close()
