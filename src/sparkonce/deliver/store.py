"""What a database must be able to do to be a sink: the four steps, in a database's words.

fence: `take_over` raises the pipeline's epoch in the ledger, which is a table beside the rows.
write: a `Stage` goes to the executors and puts the rows of each task where the database can load
them from; nobody sees them there. record: `Transaction.load` and `Transaction.note` bring rows and
ledger entry into one transaction. decide: `Transaction.commit`.

To add a database, write these three classes and run `sparkonce.deliver.conformance` on them;
docs/deliver.md walks through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sparkonce.errors import FatalError, SparkonceError
from sparkonce.stream.ledger import Entry, Offsets

Sources = list[Offsets | str]


class StoreError(SparkonceError):
    """The database refused or could not be reached; nothing of the attempt is visible."""


class RowsRefused(FatalError):
    """Rows that the table does not take; another attempt would not change that."""


@dataclass(frozen=True, slots=True)
class Held:
    """A pipeline's row in the ledger."""

    epoch: int
    """Of the driver that took over last; whoever has a smaller one is refused."""
    entry: Entry | None
    sources: Sources | None


@dataclass(frozen=True, slots=True)
class Part:
    """What one task has staged."""

    task: int
    name: str
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load has brought into the table."""

    records: int
    dead_letters: int = 0


class Stage(Protocol):
    """Goes to the executors."""

    def __call__(self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> str:
        """Put all rows where the database can load them from; the name of the place.

        `task` is different for every attempt of every task."""


class Transaction(Protocol):
    """One transaction of the database, begun under an epoch."""

    def load(self, parts: Sequence[Part]) -> Loaded:
        """Rows from the stage into the table; StoreError if not all of them are there."""

    def note(self, entry: Entry, sources: Sources) -> None:
        """Into the ledger."""

    def commit(self) -> None:
        """OutcomeUnknown if the decision was sent and its answer never came."""

    def rollback(self) -> None:
        """Nothing of it may ever become visible; must not fail, whatever state it is in."""


class Store(Protocol):
    """One table of one database, in the driver."""

    def prepare(self) -> None:
        """The table is there, or made if that was asked, and takes such rows: ConfigError if not.
        The ledger is there."""

    def take_over(self) -> Held:
        """Raise the epoch, and tell what is held then. What a former driver has under way is
        decided before this returns; what it left staged is removed."""

    def holder(self) -> Held:
        """What is held now. Waits for a commit that is under way, so that the answer is final."""

    def stage(self, epoch: int, attempt: int) -> Stage:
        """A place of its own for the rows of this attempt."""

    def begin(self, epoch: int) -> Transaction:
        """FencedError if the epoch is not the last one; nobody can raise it until the end."""

    def discard(self, epoch: int, attempt: int) -> None:
        """Remove what an attempt has staged, loaded or not."""

    def close(self) -> None: ...
