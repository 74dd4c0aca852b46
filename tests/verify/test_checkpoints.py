"""What is looked for in a checkpoint, and forgotten."""

from __future__ import annotations

from pathlib import Path

from sparkonce.verify.checkpoints import forget_last_commit, has_snapshots


def checkpoint(folder: Path, planned: int, *files: str) -> Path:
    (folder / "offsets").mkdir()
    for batch in range(planned + 1):
        (folder / "offsets" / str(batch)).touch()
        (folder / "offsets" / f".{batch}.crc").touch()
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return folder


def test_a_snapshot_of_the_planned_batch_has_the_next_number_as_its_version(
    tmp_path: Path,
) -> None:
    folder = checkpoint(
        tmp_path, 2, "state/0/0/3.delta", "state/0/1/3.delta", "state/0/_metadata/metadata"
    )
    assert not has_snapshots(folder)
    (folder / "state/0/0/3.snapshot").touch()
    assert not has_snapshots(folder), "the other partition has none"
    (folder / "state/0/1/2.snapshot").touch()
    assert not has_snapshots(folder), "that one is of the batch before"
    (folder / "state/0/1/3.snapshot").touch()
    assert has_snapshots(folder)


def test_one_of_rocksdb_may_have_an_id_of_its_attempt(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 0, "state/0/0/1_ab-12.changelog")
    assert not has_snapshots(folder)
    (folder / "state/0/0/1_ab-12.zip").touch()
    assert has_snapshots(folder)


def test_without_state_there_is_none(tmp_path: Path) -> None:
    assert not has_snapshots(checkpoint(tmp_path, 0))
    assert not has_snapshots(tmp_path / "nowhere")


def test_the_last_commit_is_forgotten_with_its_checksum(tmp_path: Path) -> None:
    files = [f"commits/{name}" for name in ("0", "1", "10", ".0.crc", ".1.crc", ".10.crc")]
    folder = checkpoint(tmp_path, 10, *files)
    forget_last_commit(folder)
    left = sorted(each.name for each in (folder / "commits").iterdir())
    assert left == [".0.crc", ".1.crc", "0", "1"]
    forget_last_commit(tmp_path / "nowhere")


def test_each_query_of_a_folder_forgets_its_last_commit(tmp_path: Path) -> None:
    own = ("commits/0", "commits/1", "commits/.1.crc")
    checkpoint(tmp_path, 1, *own, *(f"out/{each}" for each in own))
    forget_last_commit(tmp_path)
    left = sorted(each.name for each in tmp_path.glob("**/commits/*"))
    assert left == ["0", "0"]
