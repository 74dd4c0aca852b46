"""State belongs to an attempt: a batch goes on from the state whose output is visible.

Tasks write their state before the batch is decided, and whoever works on the checkpoint writes into
the same folders: an attempt that was given up, a fenced driver that goes on, Spark's maintenance.
So each attempt says which state is its own, in a note beside Spark's files; the entry in the ledger
has the note's name and hash, and is visible or not with the attempt's rows. Recovery reads it.

`state_by_id` and `state_by_version` are the two ways to say it, for the two formats that Spark has
for the checkpoints of its state stores; `state_format` chooses between them.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, Protocol

from sparkonce.stream.checkpoint import CheckpointFolder, StateIds
from sparkonce.stream.ledger import Entry, LedgerError

FOLDER: Final = "sparkonce/state"
IDS: Final = "ids"
_TIDY_EVERY: Final = 10


class AttemptState(Protocol):
    """The state of one query, through all attempts at its batches."""

    is_shared: bool
    """Whether others with this checkpoint write files of the same names: then nothing is computed,
    and nothing removed, before the sink has been asked whether this driver is still the owner."""

    def prepare(self, batch: int, *, is_first: bool) -> None:
        """Before an attempt, if state is shared. Not `is_first`: the batch is run again in the same
        run, nothing of the former attempt runs any more, and what it left must not be taken for
        that of this one."""

    def seal(self, batch: int, former: str | None) -> str:
        """Between the rows and the decision: say which state this attempt has written, given what
        the last visible one said. Raises where it must not be decided."""

    def verify(self, entry: Entry | None) -> None:
        """Before Spark reads: it finds the state that the ledger names, or nothing starts."""


class StateNotes:
    """What attempts said of their state, in the checkpoint: a file for each."""

    def __init__(self, folder: CheckpointFolder, *, kept: int) -> None:
        """Those of the last `kept` batches stay."""
        self._folder = folder
        self._kept = kept

    def write(self, batch: int, fields: Mapping[str, Any]) -> str:
        """Answers the mark for the ledger: the note's name and hash."""
        text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
        name = f"{batch}-{uuid.uuid4().hex}"
        self._folder.files.write(f"{FOLDER}/{name}", text)
        if batch % _TIDY_EVERY == 0:
            self._tidy(batch - self._kept)
        return f"{name}:{_digest(text)}"

    def read(self, mark: str) -> dict[str, Any]:
        """The note of a visible attempt, exactly as that attempt wrote it."""
        name, _, digest = mark.partition(":")
        text = self._folder.files.read(f"{FOLDER}/{name}")
        if text is None or _digest(text) != digest:
            how = "is missing" if text is None else "was changed"
            raise LedgerError(
                f"{self._folder.location}/{FOLDER}/{name} {how}: it says which state belongs to "
                "the batch that the ledger has. Restore the checkpoint as a whole; or start with "
                "an empty checkpointLocation and lostState=empty, and the query goes on from the "
                "ledger with empty state"
            )
        fields: dict[str, Any] = json.loads(text)
        return fields

    def has(self, mark: str) -> bool:
        """Whether a note is still kept."""
        return self._folder.files.read(f"{FOLDER}/{mark.partition(':')[0]}") is not None

    def ids(self, entry: Entry | None) -> StateIds | None:
        """Which state Spark's commit has to name; None where the attempt's state has no ids."""
        if entry is None or entry.state is None:
            return None
        ids: StateIds | None = self.read(entry.state).get(IDS)
        return ids

    def _tidy(self, before: int) -> None:
        for name in self._folder.files.names(FOLDER):
            number = name.partition("-")[0]
            if number.isdigit() and int(number) < before:
                self._folder.files.delete(f"{FOLDER}/{name}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
