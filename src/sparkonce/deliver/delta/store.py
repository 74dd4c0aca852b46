"""A table of Delta, in the driver: prepared, taken over, and its stages.

The stage of an attempt is a folder within the table's own, which Delta does not look at. Taking
over is a commit without rows: from then on a former driver's commits are refused, since they are
of the same pipeline and from an older version of the table.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Final

from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError

from sparkonce.deliver.columns import Columns
from sparkonce.deliver.delta.changes import NoRows
from sparkonce.deliver.delta.ledger import Note
from sparkonce.deliver.delta.log import Log
from sparkonce.deliver.delta.place import Place
from sparkonce.deliver.delta.shape import Shape
from sparkonce.deliver.delta.stage import DeltaStage
from sparkonce.deliver.delta.transaction import DeltaTransaction
from sparkonce.deliver.delta.types import table_schema, type_of
from sparkonce.deliver.folder import remove
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import Held, StoreError
from sparkonce.deliver.target import TableTarget
from sparkonce.errors import ConfigError, FencedError

_NOT_HERE: Final = {
    "txnversion": "sparkonce counts it itself, so that it grows whatever checkpoint a batch is "
    "from; leave it out",
    "pipeline": "here the pipeline is named by txnAppId",
    "dbtable": "a table of Delta is named by its path",
    "ledgertable": "the ledger is in the table's own log",
    "deadlettertable": "two tables of Delta can't be committed together; filter bad rows out "
    "before writing, and write them by a query of their own",
}
_CONFLICTS_MAX: Final = 20
_log = logging.getLogger("sparkonce.deliver")


def target(options: Mapping[str, str], query_name: str | None) -> TableTarget:
    for name in options:
        if (why := _NOT_HERE.get(name.lower())) is not None:
            raise ConfigError(f"{name} is no option of delta: {why}")
    settings = TableSettings.parse(
        options, query_name, place="path", table="path", named_by="txnAppId", own=("txnAppId",)
    )
    Place.of(settings.place, settings.group)
    return TableTarget(settings, type_of, DeltaStore)


class DeltaStore:
    def __init__(self, settings: TableSettings, columns: Columns) -> None:
        self._settings = settings
        self._columns = columns
        self._place = Place.of(settings.place, settings.group)
        self._log = Log(self._place, settings.group)

    # -- before the query starts ---------------------------------------------------------------

    def prepare(self) -> None:
        if self._settings.creates and not DeltaTable.is_deltatable(self._place.root):
            self._create()
        with self._log.lock:
            shape = self._read_shape()
            if self._settings.merges_schema and shape.missing(self._columns):
                shape = self._with_columns(shape)
        shape.check(self._columns, upserts=self._settings.upserts)

    def _read_shape(self) -> Shape:
        return Shape.of(self._log.read().table, str(self._place.root))

    def _with_columns(self, shape: Shape) -> Shape:
        """After the columns that the table lacks were added to it."""
        for _ in range(_CONFLICTS_MAX):
            missing = shape.missing(self._columns)
            if not missing:
                return shape
            fields = Schema.from_json(table_schema(missing, ()).json()).fields
            try:
                self._log.seen.table.alter.add_columns(fields)
            except CommitFailedError as error:
                _log.info("%s is changed by somebody else: %s", self._place.root, error)
            except Exception as error:
                # delta-rs has no class of its own for some.
                names = ", ".join(field.name for field in missing)
                raise ConfigError(
                    f"column {names} could not be added to {self._place.root}: {error}"
                ) from error
            shape = self._read_shape()
        return shape

    def _create(self) -> None:
        schema = Schema.from_json(table_schema(self._columns.table, self._columns.keys).json())
        try:
            DeltaTable.create(self._place.root, schema, mode="ignore")
        except CommitFailedError as error:
            _log.info("%s was created by somebody else: %s", self._place.root, error)
        except (DeltaError, OSError) as error:
            raise ConfigError(f"{self._place.root} could not be created: {error}") from error

    def take_over(self) -> Held:
        for _ in range(_CONFLICTS_MAX):
            with self._log.lock:
                note = self._next_epoch()
                try:
                    self._log.commit(NoRows(), note)
                except FencedError:
                    continue  # another one has at the same time: the later one is in charge
            self._place.clear(note.epoch)
            return note.held
        raise StoreError(
            f"{self._settings.group!r} is taken over again and again: give each pipeline a "
            f"{self._settings.named_by} of its own"
        )

    def _next_epoch(self) -> Note:
        settings, seen = self._settings, self._log.read()
        goes_on_without = settings.ledger_lost == "replay" or (
            settings.ledger_lost == "skip" and settings.run_id is None
        )
        last = seen.note if goes_on_without else seen.last
        entry, sources = (last.entry, last.sources) if last else (None, None)
        # Its own version is its epoch: that outlives a log that is cleaned up.
        version = seen.version + 1
        return Note(settings.group, version, version, uuid.uuid4().hex, entry, sources)

    def holder(self) -> Held:
        with self._log.lock:
            last = self._log.read().last
        return last.held if last else Held(0, None, None)

    # -- the steps -----------------------------------------------------------------------------

    def stage(self, epoch: int, attempt: int) -> DeltaStage:
        with self._log.lock:
            shape = Shape.of(self._log.seen.table, str(self._place.root))
        folder = self._place.attempt(epoch, attempt)
        folder.mkdir(exist_ok=True)
        return DeltaStage(
            str(folder), () if self._settings.upserts else shape.staged_by(self._columns)
        )

    def begin(self, epoch: int) -> DeltaTransaction:
        transaction = DeltaTransaction(self._log, self._place, self._settings, self._columns, epoch)
        transaction.begin()
        return transaction

    def discard(self, epoch: int, attempt: int) -> None:
        remove(self._place.attempt(epoch, attempt))

    def close(self) -> None:
        """There is nothing open."""
