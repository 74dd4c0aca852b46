"""Which files of state are an attempt's own, by what lies in a checkpoint: without Spark."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparkonce.errors import ConfigError, SparkonceError
from sparkonce.stream import checkpoint
from sparkonce.stream.checkpoint import CheckpointFolder
from sparkonce.stream.checkpoint_files import LocalFiles
from sparkonce.stream.ledger import Entry, LedgerError
from sparkonce.stream.state import IDS, StateNotes
from sparkonce.stream.state_by_id import StateById
from sparkonce.stream.state_by_version import StateByVersion
from sparkonce.stream.state_format import check_keeps_the_last

KEPT = 100


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointFolder:
    monkeypatch.setattr(checkpoint, "files_at", lambda spark, location: LocalFiles(Path(location)))
    return CheckpointFolder(None, str(tmp_path))  # type: ignore[arg-type]


def by_version(folder: CheckpointFolder) -> StateByVersion:
    return StateByVersion(folder, StateNotes(folder, kept=KEPT), kept=KEPT)


def put(folder: CheckpointFolder, name: str, text: str = "") -> Path:
    path = Path(folder.location, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or name)
    return path


def snapshot(folder: CheckpointFolder, name: str, families: Sequence[str]) -> Path:
    """As RocksDB's, by what its metadata say of column families."""
    path = Path(folder.location, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {family: number for number, family in enumerate(families)}
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("metadata", "v1\n" + json.dumps({"columnFamilyMapping": known}))
    return path


def log(folder: CheckpointFolder, *, planned: int, committed: int | None) -> None:
    for batch in range(planned + 1):
        put(folder, f"offsets/{batch}", "v1\n{}")
    for batch in range(-1 if committed is None else committed + 1):
        put(folder, f"commits/{batch}", "v1\n{}")


def entry(batch: int, state: str | None) -> Entry:
    return Entry(
        query="q", batch=batch, number=1, guarantee="exactly_once", host="h", pid=1,
        checkpoint="c", sources=None, state=state,
    )  # fmt: skip


def files_in(folder: CheckpointFolder, mark: str) -> set[str]:
    return set(StateNotes(folder, kept=KEPT).read(mark)["files"])


def test_a_partition_that_first_writes_after_a_crash_is_not_left_out(
    folder: CheckpointFolder,
) -> None:
    """The driver was killed when one task of the first batch had written, and another had not."""
    put(folder, "state/0/0/1.delta")
    log(folder, planned=0, committed=None)
    state = by_version(folder)
    state.verify(None)
    both = {put(folder, f"state/0/{partition}/1.delta").parent.name for partition in (0, 1)}
    assert {name.split("/")[2] for name in files_in(folder, state.seal(0, None))} == both


def test_stores_by_name_that_come_after_a_crash_are_not_left_out(folder: CheckpointFolder) -> None:
    put(folder, "state/0/0/_metadata/metadata")
    log(folder, planned=0, committed=None)
    state = by_version(folder)
    state.verify(None)
    for side in ("left", "right"):
        put(folder, f"state/0/0/{side}/1.delta")
    sides = {"state/0/0/left/1.delta", "state/0/0/right/1.delta"}
    assert files_in(folder, state.seal(0, None)) == sides


def test_a_version_that_a_store_lacks_is_not_decided(folder: CheckpointFolder) -> None:
    put(folder, "state/0/0/2.delta")
    put(folder, "state/0/1/1.delta")
    with pytest.raises(SparkonceError, match=r"state/0/1 has no version 2 .*not computed"):
        by_version(folder).seal(1, None)


def test_state_that_spark_has_gone_on_from_is_not_looked_for(folder: CheckpointFolder) -> None:
    """Under a weaker guarantee batches without rows are not recorded: the ledger stays behind, and
    what it names is cleared away in time."""
    log(folder, planned=30, committed=30)
    gone = entry(5, "5-note:hash")
    by_version(folder).verify(gone)
    StateById(None, folder, StateNotes(folder, kept=KEPT)).verify(gone)  # type: ignore[arg-type]


def test_a_note_of_the_last_batch_that_is_missing_is_refused(folder: CheckpointFolder) -> None:
    log(folder, planned=5, committed=5)
    last = entry(5, "5-note:hash")
    with pytest.raises(LedgerError, match="5-note is missing"):
        by_version(folder).verify(last)
    with pytest.raises(LedgerError, match="5-note is missing"):
        StateById(None, folder, StateNotes(folder, kept=KEPT)).verify(last)  # type: ignore[arg-type]


def test_ids_that_a_commit_lacks_are_put_in_their_place(folder: CheckpointFolder) -> None:
    log(folder, planned=5, committed=5)
    notes = StateNotes(folder, kept=KEPT)
    ids = {"0": [["a"], ["b"]]}
    last = entry(5, notes.write(5, {IDS: ids}))
    StateById(None, folder, notes).verify(last)  # type: ignore[arg-type]
    assert folder.state_ids(5) == ids


def test_a_query_that_keeps_no_batch_to_go_back_to_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"minBatchesToRetain=1 lets Spark remove .*2 or more"):
        check_keeps_the_last(1)
    check_keeps_the_last(2)


# -- a batch that is run again --------------------------------------------------------------------


def test_a_second_attempt_keeps_the_changes_of_a_stage_that_is_not_computed_again(
    folder: CheckpointFolder,
) -> None:
    """Below another shuffle: Spark goes on with what was shuffled, and writes no state anew."""
    delta = put(folder, "state/0/0/1.delta")
    state = by_version(folder)
    state.prepare(0, is_first=False)
    assert delta.exists()
    assert files_in(folder, state.seal(0, None)) == {"state/0/0/1.delta"}


def test_a_new_run_keeps_nothing_of_a_batch_that_was_not_decided(folder: CheckpointFolder) -> None:
    kept, *undecided = [
        put(folder, f"state/0/0/{name}") for name in ("1.delta", "2.delta", "2.snapshot")
    ]
    log(folder, planned=1, committed=0)
    by_version(folder).verify(None)
    assert kept.exists()
    assert not any(each.exists() for each in undecided)


@pytest.mark.parametrize(("kind", "whole"), [("delta", "snapshot"), ("changelog", "zip")])
def test_a_snapshot_that_may_be_of_an_aborted_attempt_goes(
    folder: CheckpointFolder, kind: str, whole: str
) -> None:
    place = "state/0/0"
    put(folder, f"{place}/1.{kind}")
    if whole == "zip":
        doubtful = snapshot(folder, f"{place}/1.zip", [])
    else:
        doubtful = put(folder, f"{place}/1.snapshot")
    state = by_version(folder)
    state.prepare(0, is_first=False)
    assert not doubtful.exists()


def test_a_snapshot_that_is_all_of_a_version_stays(folder: CheckpointFolder) -> None:
    """RocksDB without changes of its own."""
    whole = snapshot(folder, "state/0/0/1.zip", [])
    state = by_version(folder)
    state.prepare(0, is_first=False)
    assert whole.exists()
    assert files_in(folder, state.seal(0, None)) == {"state/0/0/1.zip"}


@pytest.mark.parametrize(
    ("before", "families", "stays"),
    [
        (None, ["default", "sum"], True),
        (["default", "sum"], ["default", "sum", "new"], True),
        (["default", "sum"], ["default", "sum"], False),
    ],
)
def test_a_snapshot_that_has_column_families_first_stays(
    folder: CheckpointFolder, before: list[str] | None, families: list[str], stays: bool
) -> None:
    """Changes can't be read without it, and each attempt's commit writes it over the former's."""
    if before is not None:
        snapshot(folder, "state/0/0/1.zip", before)
    version = 1 if before is None else 2
    put(folder, f"state/0/0/{version}.changelog")
    mine = snapshot(folder, f"state/0/0/{version}.zip", families)
    by_version(folder).prepare(version - 1, is_first=False)
    assert mine.exists() == stays


def test_a_snapshot_in_doubt_goes_where_the_one_before_was_cleared_away(
    folder: CheckpointFolder,
) -> None:
    put(folder, "state/0/0/20.changelog")
    doubtful = snapshot(folder, "state/0/0/20.zip", ["default", "sum"])
    by_version(folder).prepare(19, is_first=False)
    assert not doubtful.exists()


def test_a_snapshot_that_maintenance_writes_while_state_is_sealed_is_not_missed_later(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes when it is seen, so the note must not name it: no start would go on."""
    snapshot(folder, "state/0/0/1.zip", ["default"])
    put(folder, "state/0/0/2.changelog")
    log(folder, planned=1, committed=0)
    state = by_version(folder)
    state.verify(None)
    put(folder, "state/0/0/2.changelog")
    digest = LocalFiles.digest

    def digest_and_maintain(files: LocalFiles, name: str) -> str | None:
        if name.endswith("2.changelog"):
            snapshot(folder, "state/0/0/2.zip", ["default"])
        return digest(files, name)

    monkeypatch.setattr(LocalFiles, "digest", digest_and_maintain)
    mark = state.seal(1, None)
    monkeypatch.undo()
    monkeypatch.setattr(checkpoint, "files_at", lambda spark, location: LocalFiles(Path(location)))
    assert files_in(folder, mark) == {"state/0/0/2.changelog"}
    log(folder, planned=1, committed=1)
    by_version(folder).verify(entry(1, mark))


def test_a_snapshot_that_stays_is_compared(folder: CheckpointFolder) -> None:
    """Of a driver that was fenced and goes on, it may have come before changes that are noticed."""
    put(folder, "state/0/0/1.changelog")
    log(folder, planned=0, committed=None)
    state = by_version(folder)
    state.verify(None)
    put(folder, "state/0/0/1.changelog")
    mine = snapshot(folder, "state/0/0/1.zip", ["default", "sum"])
    mark = state.seal(0, None)
    log(folder, planned=0, committed=0)
    by_version(folder).verify(entry(0, mark))
    mine.write_bytes(mine.read_bytes() + b"another's")
    with pytest.raises(LedgerError, match=r"1\.zip is not what the visible attempt wrote"):
        by_version(folder).verify(entry(0, mark))


@pytest.mark.parametrize(("kind", "whole"), [("delta", "snapshot"), ("changelog", "zip")])
def test_a_snapshot_of_a_fenced_driver_goes_before_state_is_read(
    folder: CheckpointFolder, kind: str, whole: str
) -> None:
    """It computed the version that its successor decided, and remembers it. It may write it before
    a start, or before a batch of the run."""
    put(folder, f"state/0/0/1.{kind}")
    log(folder, planned=0, committed=None)
    successor = by_version(folder)
    successor.verify(None)
    put(folder, f"state/0/0/1.{kind}")
    mark = successor.seal(0, None)
    log(folder, planned=0, committed=0)
    next_run = by_version(folder)
    for read in (
        lambda: next_run.verify(entry(0, mark)),
        lambda: next_run.prepare(1, is_first=True),
    ):
        zombies = snapshot(folder, f"state/0/0/1.{whole}", [])
        read()
        assert not zombies.exists()


def successor_of_a_driver_in_its_first_batch(folder: CheckpointFolder) -> StateByVersion:
    """It has computed the version that both work on, and not yet sealed it."""
    log(folder, planned=0, committed=None)
    successor = by_version(folder)
    successor.verify(None)
    put(folder, "state/0/0/1.delta")
    return successor


def test_a_file_that_a_fenced_driver_writes_over_is_noticed_in_the_same_run(
    folder: CheckpointFolder,
) -> None:
    """An executor reads it where the partition comes to it from another one, batches later."""
    successor = successor_of_a_driver_in_its_first_batch(folder)
    mark = successor.seal(0, None)
    successor.prepare(1, is_first=True)
    put(folder, "state/0/0/2.delta")
    successor.seal(1, mark)
    put(folder, "state/0/0/1.delta", "the fenced driver's")
    with pytest.raises(LedgerError, match=r"1\.delta is not what the visible attempt wrote"):
        successor.prepare(2, is_first=True)


def test_a_file_that_is_written_over_while_a_batch_runs_is_noticed_before_its_decision(
    folder: CheckpointFolder,
) -> None:
    successor = successor_of_a_driver_in_its_first_batch(folder)
    mark = successor.seal(0, None)
    successor.prepare(1, is_first=True)
    put(folder, "state/0/0/1.delta", "the fenced driver's")
    put(folder, "state/0/0/2.delta")
    with pytest.raises(LedgerError, match=r"1\.delta is not what the visible attempt wrote"):
        successor.seal(1, mark)


def test_a_version_in_doubt_stays_so_after_a_start(folder: CheckpointFolder) -> None:
    mark = successor_of_a_driver_in_its_first_batch(folder).seal(0, None)
    log(folder, planned=0, committed=0)
    next_run = by_version(folder)
    next_run.verify(entry(0, mark))
    next_run.prepare(1, is_first=True)
    put(folder, "state/0/0/1.delta", "the fenced driver's")
    with pytest.raises(LedgerError, match=r"1\.delta is not what the visible attempt wrote"):
        next_run.prepare(1, is_first=True)


def test_a_file_that_spark_no_longer_reads_may_change(folder: CheckpointFolder) -> None:
    """A snapshot of a later version has all of it, and Spark clears such files away."""
    successor = successor_of_a_driver_in_its_first_batch(folder)
    mark = successor.seal(0, None)
    put(folder, "state/0/0/2.delta")
    successor.seal(1, mark)
    put(folder, "state/0/0/2.snapshot")
    Path(folder.location, "state/0/0/1.delta").unlink()
    successor.prepare(2, is_first=True)


def test_the_last_of_two_attempts_at_a_version_is_what_counts(folder: CheckpointFolder) -> None:
    """Each wrote other files, and what the first of them sealed was never decided."""
    place = "state/0/0"
    state = by_version(folder)
    state.prepare(0, is_first=False)
    put(folder, f"{place}/1.changelog")
    removed = snapshot(folder, f"{place}/1.zip", ["default", "sum"])
    state.seal(0, None)
    state.prepare(0, is_first=False)
    removed.unlink()
    put(folder, f"{place}/1.changelog", "the second attempt's")
    state.seal(0, None)
    state.prepare(1, is_first=True)
