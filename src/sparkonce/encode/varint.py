"""Variable-length integers for whole columns at once, the glue between the bytes of a record.

A record is its fields with varints between them. Here a column of varints is one 64-bit word per
row, bytes in wire order, beside its width: neighbouring varints are joined by a shift and an OR.
Arrow's inline binary views have just that form, so C++ packs the words into an Arrow column. A
column that is the same in every row is held as one element; NumPy's broadcasting does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WORD_BYTES = 8
_VIEW = np.dtype([("length", "<i4"), ("word", "<u8"), ("padding", "<u4")])  # Arrow's, inline
VALUE_END = 1 << 55  # zigzag puts the sign into a bit, seven bits go into each of eight bytes
_CONTINUED = np.array(
    [sum(0x80 << (8 * byte) for byte in range(width - 1)) for width in range(WORD_BYTES + 1)],
    dtype=np.uint64,
)


@dataclass(frozen=True, slots=True)
class Varints:
    """Bytes to be written in each row: at most eight, or one element that stands for all rows."""

    words: Words
    widths: Words
    widest: int


def zigzag(values: Ints) -> Words:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def width_of(values: Ints) -> Ints:
    """How many bytes each value takes as a varint."""
    return _widths(zigzag(values)).view(np.int64)


def varints(values: Ints) -> Varints:
    """Kafka's varints (zigzag, seven bits a byte, lowest first) of values below 2^55."""
    unsigned = zigzag(values)
    widths = _widths(unsigned)
    widest = int(widths.max(initial=1))
    words = unsigned & np.uint64(0x7F)
    for byte in range(1, widest):
        group = unsigned << np.uint64(byte)  # seven bits become eight, once per byte
        words |= group & np.uint64(0x7F << (8 * byte))
    if widest > 1:
        words |= _CONTINUED[widths]
    return Varints(words, widths, widest)


def constant(content: bytes) -> Varints:
    """The same few bytes in every row."""
    word = np.array([int.from_bytes(content, "little")], dtype=np.uint64)
    return Varints(word, np.array([len(content)], dtype=np.uint64), len(content))


def glue(columns: Iterable[Varints | Any]) -> list[Varints | Any]:
    """The same columns, but neighbouring varints as one column where a word holds them."""
    glued: list[Varints | Any] = []
    for column in columns:
        left = glued[-1] if glued else None
        if (
            isinstance(left, Varints)
            and isinstance(column, Varints)
            and left.widest + column.widest <= WORD_BYTES
        ):
            glued[-1] = _beside(left, column)
        else:
            glued.append(column)
    return glued


def to_arrow(column: Varints) -> Any:
    """An Arrow binary column, or a scalar where one element stands for all rows."""
    if len(column.words) == 1:
        content = int(column.words[0]).to_bytes(WORD_BYTES, "little")
        return pa.scalar(content[: int(column.widths[0])], pa.binary())
    views = np.zeros(len(column.words), dtype=_VIEW)
    views["length"] = column.widths
    views["word"] = column.words
    inline = pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views)])
    return inline.cast(pa.binary())


def _widths(unsigned: Words) -> Words:
    widths = np.ones(len(unsigned), dtype=np.uint64)
    largest = int(unsigned.max(initial=0))
    bound = 0x80
    while largest >= bound:
        widths += unsigned >= np.uint64(bound)
        bound <<= 7
    return widths


def _beside(left: Varints, right: Varints) -> Varints:
    shifted = right.words << (left.widths << np.uint64(3))
    return Varints(left.words | shifted, left.widths + right.widths, left.widest + right.widest)
