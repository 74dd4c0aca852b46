"""What a pipeline's file has to say, and what is said if it doesn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce.guarantees import Guarantee
from sparkonce.verify.contract import ContractError, Pipeline, Record
from sparkonce.verify.families import families
from sparkonce.verify.pipelines import built_in, peers_built_in


def record(value: bytes) -> Record:
    return Record("out", 0, 0, None, value)


def test_a_file_with_run_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "my_job.py"
    file.write_text("def run(job): pass\n")
    pipeline = Pipeline.load(str(file))
    assert pipeline.name == "my_job"
    assert pipeline.guarantees == (Guarantee.EXACTLY_ONCE,)
    assert pipeline.identity(record(b"17")) == "17"
    assert pipeline.running(record(b"17")) is None
    assert (pipeline.outputs, pipeline.points, pipeline.shares) == (1, (), False)
    assert (pipeline.due_in, pipeline.batched, pipeline.by_key) == (None, True, False)
    assert pipeline.writes_transactions(Guarantee.EXACTLY_ONCE)


def test_what_a_file_says_is_heeded(tmp_path: Path) -> None:
    file = tmp_path / "my_job.py"
    file.write_text(
        "def run(job): pass\n"
        "def identity(record): return record.value.decode().upper()\n"
        "GUARANTEES = ['at_least_once']\n"
        "OUTPUTS = 2\n"
        "POINTS = ['open']\n"
        "NAME = 'mine'\n"
        "MARKED = False\n"
        "BATCHED = False\n"
        "BY_KEY = True\n"
        "FAMILIES = ['crash']\n"
        "def due_in(identity): return [1] if identity == 'dead' else [0]\n"
    )
    pipeline = Pipeline.load(str(file))
    assert pipeline.name == "mine"
    assert pipeline.guarantees == (Guarantee.AT_LEAST_ONCE,)
    assert pipeline.identity(record(b"a")) == "A"
    assert (pipeline.outputs, pipeline.points) == (2, ("open",))
    assert not pipeline.writes_transactions(Guarantee.EXACTLY_ONCE)
    assert not pipeline.batched
    assert pipeline.by_key
    assert families(pipeline, Guarantee.AT_LEAST_ONCE) == ["crash"], "and network would fit"
    assert pipeline.due_in is not None and pipeline.due_in("dead") == [1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\n", r"no function run\(job\)"),
        ("def run(job): pass\nGUARANTEES = ['always']\n", "always.*there are none, at_most_once"),
    ],
)
def test_a_file_that_breaks_the_contract(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "my_job.py"
    file.write_text(text)
    with pytest.raises(ContractError, match=complaint):
        Pipeline.load(str(file))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="there is no file"):
        Pipeline.load(str(tmp_path / "nowhere.py"))


def test_ours_and_our_peers_keep_it() -> None:
    assert [each.name for each in built_in()] == [
        "producer", "joined producers", "stateless", "stateful", "topics", "dead letters", "batch",
        "shuffled",
    ]  # fmt: skip
    peers = {each.name: each.guarantees for each in peers_built_in()}
    assert peers["Spark's own sink"] == (Guarantee.AT_LEAST_ONCE,)
    assert peers["confluent-kafka loop"] == (Guarantee.AT_LEAST_ONCE,)
