"""Murmur2 as Kafka's Java client computes it, for a whole column of keys at once.

The partition of a keyed record is this hash modulo the number of partitions, so it must equal
Java's for every key: a topic written by both must have each key in one place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparkonce.encode.layout import Bytes, grid_of, layout_of
from sparkonce.encode.varint import Ints

Hashes = npt.NDArray[np.uint32]

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_M = np.uint32(_FACTOR)
_MASK = 0xFFFFFFFF
# Few long keys are faster in a plain loop over each than with NumPy, block by block, over all.
_FEW_KEYS = 100
_SHORT_BLOCKS = 16


def murmur2(keys: Any) -> Hashes:
    """The hash of each key of an Arrow binary column; meaningless where a key is null."""
    grid = grid_of(keys)
    if grid is not None and _is_vectorised(len(grid), grid.shape[1] >> 2):
        length = grid.shape[1]
        hashes: Hashes = np.full(len(keys), _SEED ^ length, dtype=np.uint32)
        _mix_grid(hashes, grid)
        _mix_tail(hashes, [grid[:, at] for at in range(length & ~3, length)])
    else:
        content, offsets = layout_of(keys)
        starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
        hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
        _mix_ragged(hashes, content, starts, lengths)
        _mix_ragged_tails(hashes, content, starts, lengths)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _is_vectorised(key_count: int, block_count: int) -> bool:
    return key_count > _FEW_KEYS or block_count <= _SHORT_BLOCKS


def _scrambled(blocks: Hashes) -> Hashes:
    mixed = blocks * _M
    mixed ^= mixed >> np.uint32(24)
    mixed *= _M
    return mixed


def _mix_grid(hashes: Hashes, grid: Bytes) -> None:
    """Keys of one length are the rows of a grid: its columns of four bytes are the blocks."""
    whole = grid.shape[1] & ~3
    blocks = np.ascontiguousarray(grid[:, :whole]).view("<u4")
    for column in range(blocks.shape[1]):
        hashes *= _M
        hashes ^= _scrambled(blocks[:, column])


def _mix_ragged(hashes: Hashes, content: Bytes, starts: Ints, lengths: Ints) -> None:
    """Block by block over the keys that still have one, longest first; the few longest alone."""
    block_counts = lengths >> 2
    most = int(block_counts.max(initial=0))
    missing = (most - block_counts).astype(np.min_scalar_type(most))  # small: sorted by radix
    longest_first = np.argsort(missing, kind="stable")
    running = hashes[longest_first]
    positions = starts[longest_first]
    descending = -block_counts[longest_first]
    overlapping: Hashes = np.ndarray(
        shape=(max(len(content) - 3, 0),), dtype="<u4", buffer=content, strides=(1,)
    )
    done = 0
    while (active := int(np.searchsorted(descending, -done))) and _is_vectorised(active, done):
        blocks = overlapping[positions[:active] + 4 * done]
        running[:active] *= _M
        running[:active] ^= _scrambled(blocks)
        done += 1
    for key in range(active):
        end = int(positions[key]) - 4 * int(descending[key])
        rest = content[int(positions[key]) + 4 * done : end].view("<u4")
        running[key] = _fold(int(running[key]), _scrambled(rest).tolist())
    hashes[longest_first] = running


def _fold(running: int, blocks: list[int]) -> int:
    for block in blocks:
        running = (running * _FACTOR & _MASK) ^ block
    return running


def _mix_ragged_tails(hashes: Hashes, content: Bytes, starts: Ints, lengths: Ints) -> None:
    for remaining in (1, 2, 3):
        chosen = np.flatnonzero(lengths & 3 == remaining)
        if not len(chosen):
            continue
        first = starts[chosen] + (lengths[chosen] & ~3)
        picked = hashes[chosen]
        _mix_tail(picked, [content[first + at] for at in range(remaining)])
        hashes[chosen] = picked


def _mix_tail(hashes: Hashes, tail: list[Bytes]) -> None:
    """The last one to three bytes, taken as unsigned ones as Java does with `& 0xff`."""
    if not tail:
        return
    for at, column in enumerate(tail):
        hashes ^= column.astype(np.uint32) << np.uint32(8 * at)
    hashes *= _M
