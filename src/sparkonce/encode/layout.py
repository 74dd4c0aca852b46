"""Arrow's binary columns as NumPy sees them: bytes and offsets, without a copy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]


class Layout(NamedTuple):
    content: Bytes
    offsets: npt.NDArray[np.signedinteger[Any]]  # one more than values; where each begins and ends


def layout_of(array: Any) -> Layout:
    _, offset_buffer, data_buffer = array.buffers()
    offsets: npt.NDArray[np.signedinteger[Any]] = np.frombuffer(
        offset_buffer, dtype=np.int64 if pa.types.is_large_binary(array.type) else np.int32
    )
    content = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    return Layout(content, offsets[array.offset : array.offset + len(array) + 1])


def grid_of(array: Any) -> Bytes | None:
    """Values of one length as the rows of a grid; None where lengths differ or one is null."""
    content, offsets = layout_of(array)
    if array.null_count or not len(array):
        return None
    length = offsets[1] - offsets[0]
    if not (np.diff(offsets) == length).all():
        return None
    return content[offsets[0] : offsets[-1]].reshape(len(array), int(length))
