"""Delta as a store: what every store keeps, and one writer at a time without any lock."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError

import delta_log
from deliver.delta_folder import KINDS, UPSERTS, DeltaFolder, ids, stage, write
from sparkonce.deliver.conformance import ENTRY, SOURCES, Conformance
from sparkonce.deliver.delta.store import DeltaStore
from sparkonce.deliver.store import StoreError
from sparkonce.errors import FencedError


@pytest.fixture
def database(tmp_path: Path) -> DeltaFolder:
    return DeltaFolder(tmp_path)


class TestDelta(Conformance):
    """With the fixture above."""


class Zombie:
    """A driver that is about to commit when another one takes over. What it has staged is there
    again: it may have been read already."""

    def __init__(self, database: DeltaFolder, kind: str) -> None:
        self.store, self.epoch = database.open_kind(kind)
        self.transaction = self.store.begin(self.epoch)
        part = stage(self.store, self.epoch, [{"id": 1, "name": "b"}], attempt=9)
        self.transaction.load([part])
        self.transaction.note(replace(ENTRY, number=9), SOURCES)
        self._staged = Path(part.name)
        self._files = {path: path.read_bytes() for path in self._staged.iterdir()}

    def commit(self) -> None:
        self._staged.mkdir(parents=True)
        for path, content in self._files.items():
            path.write_bytes(content)
        with pytest.raises(FencedError, match=f"epoch {self.epoch}") as refused:
            self.transaction.commit()
        assert isinstance(refused.value.__cause__, CommitFailedError)  # by Delta, not by chance


@pytest.mark.parametrize("kind", KINDS)
def test_a_zombie_between_its_beginning_and_its_commit(database: DeltaFolder, kind: str) -> None:
    """Nobody holds a lock that would keep others from taking over: Delta refuses the commit."""
    zombie = Zombie(database, kind)
    store, _ = database.open_kind(kind)
    zombie.commit()
    assert (ids(database), store.holder().entry) == ([], None)
    if kind in ("files", "partitions"):
        assert delta_log.files(database.path) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_zombie_after_the_new_one_has_written(database: DeltaFolder, kind: str) -> None:
    """Other commits than the one by which it was taken over are in between, and foreign ones."""
    zombie = Zombie(database, kind)
    store, epoch = database.open_kind(kind)
    for number in (1, 2, 3):
        write(store, epoch, [number + 10], number)
    write_deltalake(database.path, pa.table({"id": [99], "name": ["x"]}), mode="append")
    zombie.commit()
    assert ids(database) == [11, 12, 13, 99]
    write(store, epoch, [14], 4)
    assert ids(database) == [11, 12, 13, 14, 99]


@pytest.mark.parametrize("kind", KINDS)
def test_a_zombie_whose_stage_was_removed(database: DeltaFolder, kind: str) -> None:
    zombie = Zombie(database, kind)
    database.open_kind(kind)
    assert database.staged() == 0
    with pytest.raises(FencedError):
        zombie.transaction.commit()
    assert ids(database) == []


def test_two_take_over_at_once(database: DeltaFolder) -> None:
    """Both get an epoch, and the later one alone can write."""
    database.open()
    stores = [database.store() for _ in range(4)]
    for store in stores:
        store.prepare()
    epochs: dict[int, DeltaStore] = {}
    start = threading.Barrier(len(stores))

    def take_over(store: DeltaStore) -> None:
        start.wait()
        epochs[store.take_over().epoch] = store

    threads = [threading.Thread(target=take_over, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(epochs) == len(stores)
    assert delta_log.versions(database.path, "payments") == list(range(1, len(stores) + 2))
    for epoch, store in sorted(epochs.items()):
        if epoch == max(epochs):
            write(store, epoch, [1], 1)
        else:
            with pytest.raises(FencedError):
                store.begin(epoch)
    assert ids(database) == [1]


def test_two_threads_of_one_driver_are_no_zombies(database: DeltaFolder) -> None:
    """Under `none` rows are on their way in one thread while another one notes progress."""
    store, epoch = database.open()
    rows = store.begin(epoch)
    rows.load([stage(store, epoch, [{"id": 1, "name": "a"}])])
    progress = store.begin(epoch)
    progress.note(ENTRY, SOURCES)
    progress.commit()
    rows.commit()
    held = store.holder()
    assert (ids(database), held.entry, held.sources) == ([1], ENTRY, SOURCES)


def test_a_transaction_is_committed_once(database: DeltaFolder) -> None:
    store, epoch = database.open()
    transaction = store.begin(epoch)
    transaction.load([stage(store, epoch, [{"id": 1, "name": "a"}])])
    transaction.commit()
    with pytest.raises(StoreError, match="over"):
        transaction.commit()
    transaction.rollback()
    assert ids(database) == [1]


# -- beside others ----------------------------------------------------------------------------


def test_an_append_does_not_mind_others(database: DeltaFolder) -> None:
    store, epoch = database.open()
    transaction = store.begin(epoch)
    transaction.load([stage(store, epoch, [{"id": 1, "name": "a"}])])
    transaction.note(ENTRY, SOURCES)
    write_deltalake(database.path, pa.table({"id": [2], "name": ["x"]}), mode="append")
    transaction.commit()
    assert (ids(database), store.holder().entry) == ([1, 2], ENTRY)


def test_a_merge_is_run_again_after_others(database: DeltaFolder) -> None:
    """It may have missed the row that it should have changed."""
    store, epoch = database.open(**UPSERTS)
    transaction = store.begin(epoch)
    transaction.load([stage(store, epoch, [{"id": 1, "name": "new"}])])
    transaction.note(ENTRY, SOURCES)
    write_deltalake(database.path, pa.table({"id": [1], "name": ["old"]}), mode="append")
    with pytest.raises(StoreError, match="concurrent"):
        transaction.commit()
    assert store.holder().entry is None
    write(store, epoch, [1], 2, name="new")
    assert database.rows() == [{"id": 1, "name": "new"}]


def test_vacuum_leaves_the_stage_alone(database: DeltaFolder) -> None:
    store, epoch = database.open()
    write(store, epoch, [1], 1)
    part = stage(store, epoch, [{"id": 2, "name": "b"}], attempt=2)
    database.table().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    transaction = store.begin(epoch)
    transaction.load([part])
    transaction.commit()
    assert ids(database) == [1, 2]
