"""A column of header lists as the bytes that end each record: their number, then each header."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.encode.columns import array_lengths, as_binary, filled, lengths
from sparkonce.encode.join import join_arrays
from sparkonce.encode.layout import layout_of
from sparkonce.encode.varint import Ints, varints

NO_HEADERS = b"\x00"
_LENGTHS_BYTES_MAX = 10


def header_tails(column: pa.ChunkedArray) -> Any:
    """One binary per row; null where a header has no key, which Kafka doesn't allow."""
    counts = _counts(column)
    ends = np.cumsum(counts)
    headers, keyless = _encoded(pc.list_flatten(column))
    edges = layout_of(headers).offsets[np.append(0, ends)]
    per_row = pa.Array.from_buffers(
        headers.type, len(counts), [None, pa.py_buffer(edges), headers.buffers()[2]]
    )
    tails = join_arrays([varints(counts), per_row])
    if not keyless.any():
        return tails
    rows_hit = np.searchsorted(ends, np.flatnonzero(keyless), side="right")
    broken = np.zeros(len(counts), dtype=bool)
    broken[rows_hit] = True
    return pc.if_else(pa.array(broken), None, tails)


def header_bytes(column: pa.ChunkedArray) -> Ints:
    """About how many bytes the headers of each row take, without making them."""
    flat = pc.list_flatten(column)
    sizes = sum(np.maximum(lengths(pc.struct_field(flat, name)), 0) for name in ("key", "value"))
    edges = np.append(0, np.cumsum(sizes + _LENGTHS_BYTES_MAX))
    rows: Ints = np.diff(edges[np.append(0, np.cumsum(_counts(column)))])
    return rows


def _counts(column: pa.ChunkedArray) -> Ints:
    return filled(pc.list_value_length(column).combine_chunks(), 0)


def _encoded(headers: pa.ChunkedArray) -> tuple[Any, Any]:
    key = as_binary(pc.struct_field(headers, "key"))
    value = as_binary(pc.struct_field(headers, "value"))
    keyless = np.asarray(key.is_null())
    key_lengths = varints(np.maximum(array_lengths(key), 0))
    value_lengths = varints(array_lengths(value))
    return join_arrays([key_lengths, key, value_lengths, value]), keyless
