"""Bytes of many rows put side by side: the one pass that copies keys and values.

Two ways with the same result. Arrow joins columns of any lengths, row by row. Where all columns
have values of one length, rows are the rows of a grid and NumPy copies column by column, about
twice as fast; a varint that grows by a byte at some row only begins another grid there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.encode.layout import Bytes, grid_of, layout_of
from sparkonce.encode.varint import WORD_BYTES, Ints, Varints, glue, to_arrow

# From buffers, because Arrow imports pandas with the first Python value that it is to convert.
_EMPTY = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]
_GRID_ROWS_MIN = 256  # with fewer rows to a grid, Arrow's way is the faster one


def join_rows(columns: Sequence[Varints | Any], edges: Ints) -> list[memoryview]:
    """The bytes of all columns, row after row, cut at the rows `edges`.

    A column is varints or an Arrow binary array; a null takes no bytes. One of them is an array.
    """
    row_count = int(edges[-1])
    glued = glue(columns)
    grids = _as_grids(glued)
    if grids is not None:
        starts = _grid_starts(grids, row_count)
        if len(starts) * _GRID_ROWS_MIN <= row_count:
            return _join_grids(grids, starts, edges)
    content, offsets = layout_of(join_arrays(glued))
    return _cut(content, offsets[edges])


def join_arrays(columns: Sequence[Varints | Any]) -> Any:
    """An Arrow array with the bytes of all columns in each row."""
    arrays = [to_arrow(column) if isinstance(column, Varints) else column for column in columns]
    arrays.append(_EMPTY)
    if any(pa.types.is_large_binary(array.type) for array in arrays):
        arrays = [array.cast(pa.large_binary()) for array in arrays]  # Arrow joins no mixed types
    return pc.binary_join_element_wise(*arrays, null_handling="skip")


def _as_grids(columns: Sequence[Varints | Any]) -> list[Varints | Bytes] | None:
    grids: list[Varints | Bytes] = []
    for column in columns:
        grid = column if isinstance(column, Varints) else grid_of(column)
        if grid is None:
            return None
        grids.append(grid)
    return grids


def _grid_starts(columns: Sequence[Varints | Bytes], row_count: int) -> Ints:
    """The rows at which the width of some varint changes."""
    changed = np.zeros(row_count, dtype=bool)
    changed[0] = True
    for column in columns:
        if isinstance(column, Varints) and len(column.widths) > 1:
            changed[1:] |= column.widths[1:] != column.widths[:-1]
    return np.flatnonzero(changed)


def _join_grids(columns: Sequence[Varints | Bytes], starts: Ints, edges: Ints) -> list[memoryview]:
    widths = sum(
        column.widths[starts if len(column.widths) > 1 else 0].astype(np.int64)
        if isinstance(column, Varints)
        else column.shape[1]
        for column in columns
    ) + np.zeros(len(starts), dtype=np.int64)
    ends = np.append(starts[1:], edges[-1])
    positions = np.append(0, np.cumsum(widths * (ends - starts)))
    joined = np.empty(int(positions[-1]), dtype=np.uint8)
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        grid = joined[positions[at] : positions[at + 1]].reshape(end - start, int(widths[at]))
        left = 0
        for column in columns:
            source = _part(column, start, end)
            right = left + source.shape[1]
            grid[:, left:right] = source
            left = right
    grid_of_edge = np.searchsorted(starts, edges[:-1], side="right") - 1
    inside = (edges[:-1] - starts[grid_of_edge]) * widths[grid_of_edge]
    return _cut(joined, np.append(positions[grid_of_edge] + inside, positions[-1]))


def _part(column: Varints | Bytes, start: int, end: int) -> Bytes:
    """A column's bytes in rows of one width, or one row that stands for all of them."""
    if not isinstance(column, Varints):
        return column[start:end]
    if len(column.words) == 1:
        start, end = 0, 1
    bytes_of_words = column.words[start:end].view(np.uint8).reshape(-1, WORD_BYTES)
    return bytes_of_words[:, : int(column.widths[start])]


def _cut(content: Bytes, positions: Any) -> list[memoryview]:
    view = memoryview(content.data)
    return [view[start:end] for start, end in pairwise(positions.tolist())]
