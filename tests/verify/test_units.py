"""What a transaction was to hold, as pipelines wrote it down before: so that a torn one shows."""

from __future__ import annotations

import json
from pathlib import Path

from sparkonce.verify.contract import Job
from sparkonce.verify.pipelines import on_spark, relay


def job(folder: Path) -> Job:
    return Job(
        name="t",
        bootstrap_servers="",
        input_topic="in",
        output_topics=("out",),
        folder=str(folder),
    )


def plan(folder: Path, batch: int, **ends: int) -> None:
    offsets = folder / "offsets"
    offsets.mkdir(exist_ok=True)
    line = json.dumps({"in": {key.removeprefix("p"): end for key, end in ends.items()}})
    (offsets / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}')
    (offsets / f".{batch}.crc").write_bytes(b"\0")


def test_a_batch_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    plan(tmp_path, 0, p0=5, p1=3)
    plan(tmp_path, 1, p0=9, p1=3)
    assert on_spark.units(job(tmp_path)) == {
        f"batch 0 of {tmp_path.name}": {0: (0, 5), 1: (0, 3)},
        f"batch 1 of {tmp_path.name}": {0: (5, 9), 1: (3, 3)},
    }


def test_a_checkpoint_that_began_from_the_ledger(tmp_path: Path) -> None:
    """Found as a torn batch that was none: `sparkonce verify --minutes 23 --seed 2026`, trial 2."""
    initial = tmp_path / "sources" / "0"
    initial.mkdir(parents=True)
    (initial / "0").write_text('\0v1\n{"in":{"0":20,"1":10}}')
    plan(tmp_path, 0, p0=25, p1=12)
    assert on_spark.units(job(tmp_path)) == {
        f"batch 0 of {tmp_path.name}": {0: (20, 25), 1: (10, 12)}
    }


def test_without_a_checkpoint_nothing_is_known(tmp_path: Path) -> None:
    assert on_spark.units(job(tmp_path)) == {}
    assert relay.units(job(tmp_path)) == {}


def test_half_a_line_of_a_killed_relay_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "transactions.jsonl").write_text('{"0": [0, 5], "1": [0, 4]}\n{"0": [5, 9], "1"')
    assert list(relay.units(job(tmp_path)).values()) == [{0: (0, 5), 1: (0, 4)}]


def test_two_transactions_of_a_relay_have_names_of_their_own(tmp_path: Path) -> None:
    lines = ['{"0": [0, 0], "1": [0, 4]}', '{"0": [0, 0], "1": [4, 8]}']
    (tmp_path / "transactions.jsonl").write_text("\n".join(lines) + "\n")
    assert len(relay.units(job(tmp_path))) == 2
