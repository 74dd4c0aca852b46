"""Compression of a record section, framed as Kafka's readers expect it.

gzip and zstd are used as they come. Arrow's own lz4 frames have linked blocks, which Kafka's Java
reader refuses, so the frame is written here around raw blocks; its header never changes, hence
neither does its checksum. Snappy is framed as the xerial library does, block by block.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

import pyarrow as pa

from sparkonce.errors import EncodeError


class Codec(enum.IntEnum):
    """Kafka's codecs by their number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Codec:
        try:
            return cls[name.strip().upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in cls)
            raise EncodeError(
                f"compression type {name!r} is unknown; set it to one of {known}"
            ) from None


Compress = Callable[[memoryview], memoryview]

_BLOCK_BYTES = 64 * 1024
# magic; version 1 with independent blocks, blocks of 64 KiB, second byte of the header's xxHash32
_LZ4_HEADER = bytes.fromhex("04224d18 60 40 82")
_LZ4_END = bytes(4)
_LZ4_STORED = 0x80000000
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_ARROW_NAMES = {
    Codec.GZIP: "gzip",
    Codec.SNAPPY: "snappy",
    Codec.LZ4: "lz4_raw",
    Codec.ZSTD: "zstd",
}
_DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.ZSTD: 3}  # Kafka's; Arrow's are 9 and 1


def compressor(codec: Codec, level: int | None) -> Compress:
    """The function that compresses a record section; checks the level."""
    if codec is Codec.NONE:
        return lambda section: section
    arrow_name = _ARROW_NAMES[codec]
    if level is not None:
        _check_level(codec, arrow_name, level)
    arrow = pa.Codec(arrow_name, compression_level=level or _DEFAULT_LEVELS.get(codec))
    if codec is Codec.LZ4:
        return lambda section: _lz4_frame(arrow, section)
    if codec is Codec.SNAPPY:
        return lambda section: _xerial_stream(arrow, section)
    return lambda section: memoryview(arrow.compress(section)).cast("B")


def _check_level(codec: Codec, arrow_name: str, level: int) -> None:
    if not pa.Codec.supports_compression_level(arrow_name):
        raise EncodeError(f"{codec.name.lower()} has no compression levels; leave the level unset")
    lowest = pa.Codec.minimum_compression_level(arrow_name)
    highest = pa.Codec.maximum_compression_level(arrow_name)
    if not lowest <= level <= highest:
        raise EncodeError(
            f"compression level {level} is outside of what {codec.name.lower()} has; "
            f"set it to {lowest} to {highest}, or leave it unset"
        )


def _blocks(section: memoryview) -> list[memoryview]:
    return [section[at : at + _BLOCK_BYTES] for at in range(0, len(section), _BLOCK_BYTES)]


def _lz4_frame(arrow: pa.Codec, section: memoryview) -> memoryview:
    frame = bytearray(_LZ4_HEADER)
    for block in _blocks(section):
        packed = arrow.compress(block)
        if packed.size < len(block):
            frame += struct.pack("<I", packed.size)
            frame += packed
        else:
            frame += struct.pack("<I", len(block) | _LZ4_STORED)
            frame += block
    frame += _LZ4_END
    return memoryview(frame)


def _xerial_stream(arrow: pa.Codec, section: memoryview) -> memoryview:
    stream = bytearray(_XERIAL_HEADER)
    for block in _blocks(section):
        packed = arrow.compress(block)
        stream += struct.pack(">i", packed.size)
        stream += packed
    return memoryview(stream)
