"""The ledger in a table's own log: found again, whatever became of log, commit or checkpoint."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql.types import BooleanType, StructField

import delta_log
from deliver.delta_folder import FIELDS, KINDS, UPSERTS, DeltaFolder, ids, options_of, stage, write
from sparkonce.deliver.conformance import ENTRY, SOURCES
from sparkonce.deliver.store import Part, StoreError
from sparkonce.errors import FencedError, OutcomeUnknown
from sparkonce.stream.ledger import LedgerError


@pytest.fixture
def database(tmp_path: Path) -> DeltaFolder:
    return DeltaFolder(tmp_path)


def test_the_ledger_is_found_behind_many_commits_of_others(database: DeltaFolder) -> None:
    store, epoch = database.open()
    write(store, epoch, [1], 1)
    for _ in range(12):
        write_deltalake(database.path, pa.table({"id": [9], "name": ["x"]}), mode="append")
    held = database.store().holder()
    assert held.entry == replace(ENTRY, number=1, batch=1)
    assert held.sources == SOURCES


def test_a_merge_that_touches_nothing_is_noted(database: DeltaFolder) -> None:
    """delta-rs makes no commit then."""
    gone = StructField("gone", BooleanType())
    store = database.store(gone, deleteColumn="gone", **UPSERTS)
    store.prepare()
    epoch = store.take_over().epoch
    batch = pa.RecordBatch.from_pydict({"id": [1], "name": ["a"], "_deleted": [True]})
    name = store.stage(epoch, 1)(1, batch.schema, iter([batch]))
    transaction = store.begin(epoch)
    transaction.load([Part(1, name, 1, batch.nbytes)])
    transaction.note(ENTRY, SOURCES)
    transaction.commit()
    assert (store.holder().entry, database.rows()) == (ENTRY, [])


def test_batches_of_a_new_checkpoint_are_not_skipped(database: DeltaFolder) -> None:
    """The trap in Delta's idempotent writes, and that we don't fall into it.

    With Delta's own option txnVersion, which its documentation shows with the batch id, a write is
    skipped if its version is not above the last one of its txnAppId. After a lost checkpoint batch
    ids begin at 0 again, so new data is dropped in silence until they have grown past the old."""
    write_deltalake(database.path, pa.table({"id": [0], "name": ["x"]}).slice(0, 0))

    def write_as_delta_does(batch: int, id_: int) -> None:
        table = database.table()
        if (last := table.transaction_version("plain")) is not None and batch <= last:
            return
        once = CommitProperties(app_transactions=[Transaction("plain", batch)])
        row = pa.table({"id": [id_], "name": ["plain"]})
        write_deltalake(table, row, mode="append", commit_properties=once)

    for batch in range(3):
        write_as_delta_does(batch, batch)
    for batch in range(2):  # the checkpoint was lost, the data is new
        write_as_delta_does(batch, 3 + batch)
    assert ids(database) == [0, 1, 2]

    store, epoch = database.open()
    for batch in range(3):
        write(store, epoch, [10 + batch], number=batch)
    store, epoch = database.open()
    for batch in range(2):
        part = stage(store, epoch, [{"id": 13 + batch, "name": "ours"}], attempt=batch)
        transaction = store.begin(epoch)
        transaction.load([part])
        entry = replace(ENTRY, query=str(uuid.uuid4()), batch=batch, number=3 + batch)
        transaction.note(entry, SOURCES)
        transaction.commit()
    assert ids(database) == [0, 1, 2, 10, 11, 12, 13, 14]
    counted = delta_log.versions(database.path, "payments")
    assert counted == list(range(1, len(counted) + 1))


def clean_up(database: DeltaFolder) -> None:
    """What happens to a log whose retention is over: there is a checkpoint, and what was before
    it is gone."""
    table = database.table()
    table.create_write_transaction([], "append", table.schema())
    database.table().create_checkpoint()
    last = database.table().version()
    for file in (database.path / "_delta_log").glob("*.json"):
        if int(file.stem) < last:
            file.unlink()


def test_a_note_that_was_cleaned_up(database: DeltaFolder) -> None:
    former, epoch = database.open()
    write(former, epoch, [1], 1)
    clean_up(database)
    write(former, epoch, [2], 2)  # who is running knows what he has noted
    clean_up(database)
    with pytest.raises(LedgerError, match="ledgerLost"):
        database.open()
    with pytest.raises(LedgerError, match="ledgerLost"):
        database.store().holder()
    store = database.store(ledgerLost="replay")
    store.prepare()
    held = store.take_over()
    assert held.entry is None
    assert held.epoch > epoch
    with pytest.raises(FencedError):
        former.begin(epoch)
    write(store, held.epoch, [3], 1)
    rows = database.table().to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [1, 2, 3]


# -- when a commit fails ----------------------------------------------------------------------


def test_a_commit_after_which_something_failed_has_happened(database: DeltaFolder) -> None:
    """delta-rs writes the log's checkpoint after the commit, and tells of its failure."""
    every = {"delta.checkpointInterval": "1"}
    DeltaTable.create(database.path, FIELDS, configuration=every)
    (database.path / "_delta_log" / "_last_checkpoint").mkdir()
    store, epoch = database.open()
    write(store, epoch, [1], 1)
    held = store.holder().entry
    assert held is not None
    assert (ids(database), held.number) == ([1], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_that_happened_before_another_driver_took_over(
    database: DeltaFolder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the pipeline's last any more when its driver looks. Its files are the table's."""
    store, epoch = database.open_kind(kind)
    other = database.store(**options_of(kind))
    transaction = store.begin(epoch)
    transaction.load([stage(store, epoch, [{"id": 1, "name": "a"}])])
    transaction.note(ENTRY, SOURCES)
    database.table().alter.set_table_properties({"delta.checkpointInterval": "1"})
    store.begin(epoch)  # sees it
    last = database.path / "_delta_log" / "_last_checkpoint"
    last.unlink()
    last.mkdir()  # so that what comes after a commit fails
    read, taken = store._log.read, []

    def read_after_another_took_over() -> object:
        if not taken:
            taken.append(other.take_over())
        return read()

    monkeypatch.setattr(store._log, "read", read_after_another_took_over)
    transaction.commit()
    assert (taken[0].entry, taken[0].sources) == (ENTRY, SOURCES)
    assert ids(database) == [1]
    assert database.table().to_pyarrow_table().to_pylist() == [{"id": 1, "name": "a"}]
    with pytest.raises(FencedError):
        store.begin(epoch)
    write(other, taken[0].epoch, [2], 8)
    assert ids(database) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_an_outcome_that_is_not_known(database: DeltaFolder, kind: str) -> None:
    """The log can be neither written nor read: who was there is asked when it is back."""
    store, epoch = database.open_kind(kind)
    transaction = store.begin(epoch)
    transaction.load([stage(store, epoch, [{"id": 1, "name": "a"}])])
    transaction.note(ENTRY, SOURCES)
    log = database.path / "_delta_log"
    log.rename(database.path / "_away")
    with pytest.raises(OutcomeUnknown):
        transaction.commit()
    if log.exists():
        log.rmdir()
    (database.path / "_away").rename(log)
    assert (store.holder().entry, ids(database)) == (None, [])


def test_a_stage_that_is_not_whole(database: DeltaFolder) -> None:
    store, epoch = database.open()
    part = stage(store, epoch, [{"id": 1, "name": "a"}])
    with pytest.raises(StoreError, match="2 rows"):
        store.begin(epoch).load([replace(part, records=2)])
    next(Path(part.name).iterdir()).write_bytes(b"PAR1")
    with pytest.raises(StoreError, match="share"):
        store.begin(epoch).load([part])
    store.discard(epoch, 1)
    with pytest.raises(StoreError, match="share"):
        store.begin(epoch).load([part])
    assert database.staged() == 0
