"""The table's log as one pipeline sees it: the version that was read last, and its own last note.

A commit is made from the version that was read. If another commit of the same pipeline came in
between, Delta refuses it; so whoever has read his own epoch there commits under it, or not at all.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from sparkonce.deliver.delta.changes import Change
from sparkonce.deliver.delta.ledger import Note, find
from sparkonce.deliver.delta.place import Place
from sparkonce.deliver.store import RowsRefused, StoreError
from sparkonce.errors import ConfigError, FencedError, OutcomeUnknown
from sparkonce.stream.ledger import LedgerError

_HISTORY: Final = (10, 100, 1000, None)
"""How many commits to look back through, in steps: as a rule the note is in one of the last."""
_ROWS_REFUSED: Final = "Invalid data found"
_log = logging.getLogger("sparkonce.deliver")


class NoteGone(LedgerError):
    """The pipeline has committed, and what it noted is no longer in the log."""

    def __init__(self, pipeline: str, version: int) -> None:
        super().__init__(
            f"the table has commits of {pipeline!r}, the last with txnVersion {version}, but its "
            "note of how far the pipeline was is gone: the log was cleaned up since "
            "(delta.logRetentionDuration). Look at the table and the checkpoint, then say what "
            'becomes of a batch that Spark has not finished, by .option("ledgerLost", "replay") '
            'or "skip". With a new checkpoint the pipeline starts from its startingOffsets'
        )
        self.version = version


@dataclass(frozen=True, slots=True)
class Seen:
    """The table at one version."""

    table: DeltaTable
    pipeline: str
    version: int
    """The pipeline's last txnVersion; 0 if it has none."""
    note: Note | None

    @property
    def last(self) -> Note | None:
        """What the pipeline has noted there, if it has committed at all."""
        if self.note is None and self.version:
            raise NoteGone(self.pipeline, self.version)
        return self.note


class Log:
    def __init__(self, place: Place, pipeline: str) -> None:
        self._place = place
        self._pipeline = pipeline
        self._table: DeltaTable | None = None
        self._note: Note | None = None
        self._seen: Seen | None = None
        self.lock = threading.RLock()
        """Two threads of one driver commit under `none`; they are no zombies of each other."""

    def read(self) -> Seen:
        """What the table is now."""
        table, self._table, self._seen = self._table, None, None
        try:
            if table is None:
                table = DeltaTable(self._place.root)
            else:
                table.update_incremental()
            version = table.transaction_version(self._pipeline) or 0
            if self._note is None or self._note.version != version:
                self._note = self._find(table, version) if version else None
        except TableNotFoundError as error:
            raise ConfigError(
                f"path: there is no table in {self._place.root}: create it, or let it be created "
                'by .option("createTable", "true")'
            ) from error
        except (DeltaError, OSError) as error:
            raise StoreError(f"{self._place.root} can't be read: {error}") from error
        self._table = table
        self._seen = Seen(table, self._pipeline, version, self._note)
        return self._seen

    @property
    def seen(self) -> Seen:
        """What was read last; read again if this driver has committed since."""
        return self._seen or self.read()

    def commit(self, change: Change, note: Note) -> None:
        """From what was seen."""
        table, self._seen = self.seen.table, None
        try:
            change.commit(table, note.to_properties())
        except Exception as error:  # noqa: BLE001 - whatever it was, the log tells the outcome
            self._settle(change, note, error)
        self._note = note

    def _settle(self, change: Change, note: Note, error: Exception) -> None:
        """Raises unless the commit has happened, as it may: what delta-rs does after it can fail
        as well, the log's checkpoint for one. It need not be the pipeline's last any more: another
        driver may have taken over since, and it knows of this commit. Nothing is undone before it
        is certain that no commit of the log has it."""
        try:
            seen = self.read()
            last = seen.last
            there = self._at(seen, note.version)
        except (StoreError, ConfigError, LedgerError) as unread:
            raise OutcomeUnknown(
                f"nobody knows whether a commit has happened: {error}; and {unread}"
            ) from error
        if there is not None and there.commit == note.commit:
            _log.warning("%s: committed, but then: %s", self._pipeline, error)
            return
        change.undo()
        if last is not None and last.version >= note.version:
            raise FencedError(
                f"epoch {note.epoch} of {self._pipeline!r} is over: the table's log is at epoch "
                f"{last.epoch}"
            ) from error
        if _ROWS_REFUSED in str(error):
            raise RowsRefused(
                f"the table {self._place.root} refuses rows of this batch: {error}. Mend them "
                "before writing, or filter them out"
            ) from error
        raise StoreError(f"the commit was refused: {error}") from error

    def _at(self, seen: Seen, version: int) -> Note | None:
        """What the pipeline has noted under that txnVersion; None if it has not come to it."""
        if seen.version < version:
            return None
        try:
            found = self._find(seen.table, version)
        except (DeltaError, OSError) as error:
            raise StoreError(f"{self._place.root} can't be read: {error}") from error
        if found is None:
            raise NoteGone(self._pipeline, version)
        return found

    def _find(self, table: DeltaTable, version: int) -> Note | None:
        for limit in _HISTORY:
            if (note := find(table.history(limit), self._pipeline, version)) is not None:
                return note
        return None
