"""Which partition a row goes to when it doesn't say so itself, as Kafka's Java client decides.

Keyed rows go by their key's hash. Keyless rows stay on one partition for as many bytes as make a
good batch and then move on (KIP-480, KIP-794); where to start and to move is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkonce.encode.batch import HEADER_BYTES
from sparkonce.encode.murmur2 import murmur2
from sparkonce.encode.varint import Ints
from sparkonce.errors import EncodeError


class NotOwned(EncodeError):
    """A row would go to a partition that another writer, side by side with this one, has."""


class NoShare(NotOwned):
    """More writers side by side than the topic has partitions."""


@dataclass(slots=True)
class _Sticky:
    partition: int
    used_bytes: int


class Partitioner:
    """Remembers for each topic where keyless rows go at the moment; for one thread."""

    def __init__(self, sticky_bytes: int, start: Callable[[int], int]) -> None:
        self._run_bytes = max(sticky_bytes - HEADER_BYTES, 1)
        self._start = start
        self._stuck: dict[str, _Sticky] = {}
        self._share, self._shares = 0, 1
        self._chooses = True

    def keep_to(self, share: int, shares: int) -> None:
        """Keyless rows go only to every `shares`-th partition from `share` on."""
        if not 0 <= share < shares:
            raise EncodeError(f"there is no share {share} of {shares}; count from 0")
        if (share, shares) != (self._share, self._shares):
            self._share, self._shares = share, shares
            self._stuck.clear()

    def choose(self, chooses: bool) -> None:
        """Whether rows that don't name a partition get one; they are refused otherwise."""
        self._chooses = chooses

    def keyed(self, keys: Any, partition_counts: Ints) -> Ints:
        """Partitions by hash; `partition_counts` is per row, or one for all rows."""
        self._need_choice()
        positive = murmur2(keys) & np.uint32(0x7FFFFFFF)
        return (positive % partition_counts.astype(np.uint32)).astype(np.int64)

    def keyless(self, topic: str, sizes_bytes: Ints, partition_count: int) -> Ints:
        """Partitions in runs of about `sticky_bytes`, going on where the last call ended."""
        self._need_choice()
        partitions = np.empty(len(sizes_bytes), dtype=np.int64)
        ends = np.cumsum(sizes_bytes)
        at, before = 0, 0
        sticky = self._stuck.get(topic)
        if sticky is None or sticky.partition >= partition_count:
            sticky = self._moved(topic, partition_count)
        while at < len(partitions):
            room = self._run_bytes - sticky.used_bytes
            until = int(np.searchsorted(ends, before + room, side="right"))
            if sticky.used_bytes == 0:
                until = max(until, at + 1)  # a record over the whole run has a run of its own
            partitions[at:until] = sticky.partition
            if until > at:
                sticky.used_bytes += int(ends[until - 1]) - before
                at, before = until, int(ends[until - 1])
            if at < len(partitions):
                sticky = self._moved(topic, partition_count)
        return partitions

    def own(self, topic: str, partition_count: int) -> range:
        """The partitions that rows without a key may go to."""
        partitions = range(self._share, partition_count, self._shares)
        if not partitions:
            raise NoShare(
                f"{topic} has {partition_count} partitions: none is left for share {self._share} "
                f"of {self._shares}; let fewer writers share it"
            )
        return partitions

    def _need_choice(self) -> None:
        if not self._chooses:
            raise NotOwned(
                "rows without a partition are among rows that lie by their partition: whichever "
                "is chosen for them, another task may be writing to it"
            )

    def _moved(self, topic: str, partition_count: int) -> _Sticky:
        own = self.own(topic, partition_count)
        sticky = _Sticky(own[self._start(len(own)) % len(own)], 0)
        self._stuck[topic] = sticky
        return sticky
