"""The ledger, in the table's own log: a pipeline's commits carry a note of how far it is.

Each commit of a pipeline has Delta's `txn` action, by which it conflicts with any other of the same
pipeline, and in its commitInfo the note. A commit that records nothing new carries the former
note on, so the last one has all there is to know. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deltalake import CommitProperties, Transaction

from sparkonce.deliver import row
from sparkonce.deliver.store import Held, Sources
from sparkonce.stream.ledger import Entry

KEY: Final = "sparkonce"
"""In the commitInfo; what `DESCRIBE HISTORY` and `DeltaTable.history()` read."""
_READ: Final = tuple(name for name, _ in row.COLUMNS[1:])


@dataclass(frozen=True, slots=True)
class Note:
    """What a commit says of its pipeline."""

    pipeline: str
    version: int
    """Delta's txnVersion: counts this pipeline's commits. A batch's number would not do, since it
    begins at 0 again after a lost checkpoint, and whoever writes by Delta's rule (skip what is not
    above the last version) drops such batches silently."""
    epoch: int
    """The version by which the driver took over that wrote this."""
    commit: str
    """Like no other's, to know one's own by."""
    entry: Entry | None = None
    sources: Sources | None = None

    @property
    def held(self) -> Held:
        return Held(self.epoch, self.entry, self.sources)

    def to_properties(self) -> CommitProperties:
        fields: dict[str, Any] = {
            "pipeline": self.pipeline,
            "version": self.version,
            "epoch": self.epoch,
            "commit": self.commit,
        }
        if self.entry is not None:
            fields |= row.to_row(self.entry, self.sources or [])
        return CommitProperties(
            custom_metadata={KEY: fields},
            app_transactions=[Transaction(self.pipeline, self.version)],
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Note:
        held = row.from_row([fields.get(name) for name in _READ])
        return cls(
            fields["pipeline"],
            fields["version"],
            fields["epoch"],
            fields["commit"],
            held.entry,
            held.sources,
        )


def find(history: Iterable[Mapping[str, Any]], pipeline: str, version: int) -> Note | None:
    """Among commitInfos, the note of that version."""
    for info in history:
        fields = info.get(KEY)
        if (
            isinstance(fields, Mapping)
            and fields.get("pipeline") == pipeline
            and fields.get("version") == version
        ):
            return Note.from_json(fields)
    return None
