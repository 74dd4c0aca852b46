"""The records of a chunk as bytes: sizes first, since batches are cut by them, then the bytes.

All batches of a chunk are made by one call: the varints made by NumPy are joined, row by row, with
keys, values and headers, and cut where batches begin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkonce.encode.chunk import Chunk, collapsed
from sparkonce.encode.columns import array_lengths
from sparkonce.encode.headers import NO_HEADERS
from sparkonce.encode.join import join_rows
from sparkonce.encode.varint import VALUE_END, Ints, constant, varints, width_of

_ATTRIBUTES = b"\x00"
_NULL_LENGTH = np.full(1, -1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of each record: alone in a batch, and at most in any batch of this chunk."""

    alone: Ints
    at_most: Ints


def record_sizes(chunk: Chunk) -> Sizes:
    fixed = _fixed_bytes(chunk, _key_lengths(chunk), _value_lengths(chunk))
    times = np.clip(chunk.timestamps_ms, 0, VALUE_END)  # others are rejected, see `reject`
    spread = np.array([times.max() - times.min()]) if len(times) else np.zeros(1, np.int64)
    delta_bytes = width_of(spread) + width_of(np.array([len(chunk)]))
    every_row = np.zeros(len(chunk), dtype=np.int64)
    return Sizes(_with_length(fixed + 2) + every_row, _with_length(fixed + delta_bytes) + every_row)


def record_sections(chunk: Chunk, starts: Ints) -> list[memoryview]:
    """The record section of each batch; `starts` are the rows at which batches begin."""
    edges = np.append(starts, len(chunk))
    counts = np.diff(edges)
    offset_deltas = np.arange(len(chunk)) - np.repeat(starts, counts)
    time_deltas = np.zeros(1, dtype=np.int64)
    if len(chunk.timestamps_ms) > 1:
        bases = chunk.timestamps_ms[starts]
        time_deltas = chunk.timestamps_ms - np.repeat(bases, counts)

    key_lengths, value_lengths = _key_lengths(chunk), _value_lengths(chunk)
    fixed = _fixed_bytes(chunk, key_lengths, value_lengths)
    times, offsets = varints(time_deltas), varints(offset_deltas)
    body = fixed + (times.widths + offsets.widths).view(np.int64)
    before_key = [varints(body), constant(_ATTRIBUTES), times, offsets, varints(key_lengths)]
    key = [] if chunk.key is None else [chunk.key]
    tail = constant(NO_HEADERS) if chunk.tail is None else chunk.tail
    return join_rows([*before_key, *key, varints(value_lengths), chunk.value, tail], edges)


def _key_lengths(chunk: Chunk) -> Ints:
    return _NULL_LENGTH if chunk.key is None else collapsed(array_lengths(chunk.key))


def _value_lengths(chunk: Chunk) -> Ints:
    return collapsed(array_lengths(chunk.value))


def _fixed_bytes(chunk: Chunk, key_lengths: Ints, value_lengths: Ints) -> Ints:
    """All of a record's body but its two deltas, which depend on the batch."""
    tail_bytes = len(NO_HEADERS) if chunk.tail is None else array_lengths(chunk.tail)
    sizes: Ints = len(_ATTRIBUTES) + _field_bytes(key_lengths) + _field_bytes(value_lengths)
    return sizes + tail_bytes


def _field_bytes(field_lengths: Ints) -> Ints:
    return width_of(field_lengths) + np.maximum(field_lengths, 0)


def _with_length(body: Ints) -> Ints:
    return width_of(body) + body
