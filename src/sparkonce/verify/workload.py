"""What goes into a pipeline in a trial: how much, how large, in how many parts, and what state.

Drawn from the trial's seed (`drawing`), kept as text in the book like the schedule: its repr is the
code that makes it again. Pure values; `filling` writes the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sparkonce.verify.identity import PAD
from sparkonce.verify.network import ShortRepr

PARTITIONS: Final = 2
ABORTED_FROM: Final = 900_000
"""Numbers of records whose transaction was aborted; none of the others comes so far."""
_KEYS_MIN: Final = 4
_SPREAD: Final = 2_654_435_761
"""Knuth's multiplier: neighbouring numbers come to lie far apart."""

_STORE: Final = "spark.sql.streaming.stateStore"
_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state"
_HDFS: Final = {f"{_STORE}.providerClass": f"{_PROVIDERS}.HDFSBackedStateStoreProvider"}
_ROCKSDB: Final = {f"{_STORE}.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider"}
_CHANGELOG: Final = {
    **_ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
STORES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "": _ROCKSDB,
        "hdfs": _HDFS,
        "rocksdb": _CHANGELOG,
        "rocksdb by version": {**_CHANGELOG, f"{_STORE}.checkpointFormatVersion": "1"},
    }
)
"""How Spark keeps state, by the name that a workload has for it. Where no format is named, it is
the product's choice. With a changelog, as by default with HDFS, snapshots come later."""
BY_VERSION: Final = ("hdfs", "rocksdb by version")
"""Files are named by version alone: whoever writes last has written."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Workload(ShortRepr):
    records: int = 40
    per_batch: int = 20
    partitions: int = PARTITIONS
    """Of the input and of each output."""
    value_bytes: int = 0
    """Values are from a few bytes to so many long; 0: all as short as can be."""
    batch_size: int = 0
    """As the client's `batch.size`; 0: its default."""
    aborted: int = 0
    """So many records more, in transactions that are aborted: they must never come out."""
    spread: bool = False
    """Whether each key is in every partition of the input, and so in every task."""
    store: str = ""
    """One of `STORES`."""
    deltas: int = 0
    """After so many versions of its state Spark writes a snapshot; 0: its default."""
    maintained: bool = False
    """Whether Spark's maintenance of state runs all the time, in all lives. Else it does not come
    to run: it must not mend by chance what a former life left."""

    @property
    def batches(self) -> int:
        """At least; with an input of one partition, or of equal ones, exactly so many."""
        return -(-self.records // self.per_batch)

    @property
    def keys(self) -> int:
        return max(_KEYS_MIN, 2 * self.partitions)

    @property
    def settings(self) -> dict[str, str]:
        """Of the Kafka client."""
        return {"batch.size": str(self.batch_size)} if self.batch_size else {}

    @property
    def conf(self) -> dict[str, str]:
        """Of the Spark session."""
        deltas = {f"{_STORE}.minDeltasForSnapshot": str(self.deltas)} if self.deltas else {}
        return {**STORES[self.store], **deltas}

    @classmethod
    def parse(cls, text: str) -> Workload:
        """The way back from its repr, as our own books have it."""
        workload = eval(text, {"__builtins__": {}}, {cls.__name__: cls})
        assert isinstance(workload, cls)
        return workload

    def place(self, number: int) -> tuple[int, int]:
        """The key of the record with this number, and its partition in the input."""
        turn, key = divmod(number, self.keys)
        # Not by its hash, which would leave partitions without any.
        return key, (turn if self.spread else key) % self.partitions

    def identity(self, trial: int, number: int) -> str:
        """The value of the record with this number: which one it is, and padding behind it."""
        name = f"t{trial}-{number:06}"
        room = max(0, self.value_bytes - len(name))
        return name + PAD * ((number * _SPREAD % 2**32) * (room + 1) >> 32)
