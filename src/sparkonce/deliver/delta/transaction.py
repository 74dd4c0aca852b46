"""One commit of Delta's log: gathered here, made at the end, from the version it began at."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sparkonce.deliver import row
from sparkonce.deliver.columns import Columns
from sparkonce.deliver.delta.changes import AddFiles, AppendRows, Change, NoRows
from sparkonce.deliver.delta.footer import Footer, read_all
from sparkonce.deliver.delta.ledger import Note
from sparkonce.deliver.delta.log import Log, Seen
from sparkonce.deliver.delta.newest import Newest
from sparkonce.deliver.delta.place import Place
from sparkonce.deliver.delta.rewrite import RewriteFiles
from sparkonce.deliver.delta.shape import Shape
from sparkonce.deliver.delta.upsert import MergeRows
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.store import Loaded, Part, RowsRefused, Sources, StoreError
from sparkonce.errors import FencedError
from sparkonce.stream.ledger import Entry


class DeltaTransaction:
    def __init__(
        self, log: Log, place: Place, settings: TableSettings, columns: Columns, epoch: int
    ) -> None:
        self._log = log
        self._place = place
        self._settings = settings
        self._columns = columns
        self._epoch = epoch
        self._name = uuid.uuid4().hex
        self._change: Change = NoRows()
        self._noted: tuple[Entry, Sources] | None = None
        self._is_over = False

    def begin(self) -> None:
        with self._log.lock:
            self._holder(self._log.read())

    def load(self, parts: Sequence[Part]) -> Loaded:
        if not parts:
            return Loaded(0)
        footers = read_all(parts)
        if (there := sum(each.rows for each in footers)) != (told := sum(p.records for p in parts)):
            raise StoreError(f"{told} rows were staged and {there} are there")
        with self._log.lock:
            shape = Shape.of(self._log.seen.table, str(self._place.root))
        shape.check(self._columns, upserts=self._settings.upserts)
        if self._settings.upserts:
            newest = Newest(self._columns, footers)
            newest.check(shape.required)
            self._change = (
                RewriteFiles(newest, shape, self._place.root, self._name)
                if shape.takes_rewriting
                else MergeRows(newest)
            )
        elif shape.takes_files and _are_split(footers, shape.staged_by(self._columns)):
            _check_nulls(footers, shape)
            self._change = AddFiles(self._place.root, self._name, footers, shape)
        elif _are_split(footers, ()):
            self._change = AppendRows(footers, shape.left_out(self._columns))
        else:
            raise StoreError(
                f"partitions or constraints of {shape.path} have changed while rows were staged "
                "for it: the batch is run again, for the table as it is now"
            )
        return Loaded(sum(footer.rows for footer in footers))

    def note(self, entry: Entry, sources: Sources) -> None:
        self._noted = (entry, sources)

    def commit(self) -> None:
        if self._is_over:
            raise StoreError("the transaction is over: this is a mistake of sparkonce's")
        self._is_over = True
        with self._log.lock:
            last = self._holder(self._log.seen)
            if self._noted and last.entry and last.entry.number >= self._noted[0].number:
                row.check_noted(0, self._noted[0])
            entry, sources = self._noted or (last.entry, last.sources)
            note = Note(last.pipeline, last.version + 1, self._epoch, self._name, entry, sources)
            self._log.commit(self._change, note)

    def rollback(self) -> None:
        """Nothing was done yet."""
        self._is_over = True

    def _holder(self, seen: Seen) -> Note:
        last = seen.last
        if last is None or last.epoch != self._epoch:
            now = f"is at epoch {last.epoch}" if last else "has nothing of it any more"
            raise FencedError(
                f"epoch {self._epoch} of {self._settings.group!r} is over: the table's log {now}"
            )
        return last


def _are_split(footers: Sequence[Footer], columns: Sequence[str]) -> bool:
    """Each file has one value of each of these columns, and all values of others."""
    return all(set(footer.partition) == set(columns) for footer in footers)


def _check_nulls(footers: Sequence[Footer], shape: Shape) -> None:
    for name in shape.required:
        if any(footer.has_null(name) for footer in footers):
            raise RowsRefused(
                f"column {name!r} of the table {shape.path} is NOT NULL, and it is null in rows of "
                "this batch: mend them before writing, or filter them out"
            )
