"""`sparkonce verify` as users run it: the quick preset, pipelines of their own, a wrong one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

_VERIFY = [sys.executable, "-c", "from sparkonce.console.app import main; main()", "verify"]
DOCS = Path(__file__).parents[2] / "docs" / "verify.md"

# Progress behind the data: whoever is killed in between writes it again.
WRONG = """
from confluent_kafka import Consumer, Producer, TopicPartition

POINTS = ("written",)
MARKED = False  # it doesn't even claim transactions

def run(job):
    consumer = Consumer({
        "bootstrap.servers": job.bootstrap_servers,
        "group.id": job.name,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    })
    producer = Producer({"bootstrap.servers": job.bootstrap_servers, "enable.idempotence": True})
    parts = [TopicPartition(job.input_topic, index) for index in range(2)]
    position = {p.partition: max(0, p.offset) for p in consumer.committed(parts, timeout=30)}
    ends = {p.partition: consumer.get_watermark_offsets(p, timeout=30)[1] for p in parts}
    consumer.assign([TopicPartition(job.input_topic, i, at) for i, at in position.items()])
    while position != ends:
        for message in consumer.consume(job.per_batch, 0.5):
            if message.error() is None:
                producer.produce(job.output_topic, message.value(), message.key())
                position[message.partition()] = message.offset() + 1
        producer.flush()
        job.observe("written")
        consumer.commit(
            offsets=[TopicPartition(job.input_topic, i, at) for i, at in position.items()],
            asynchronous=False,
        )
    consumer.close()
"""


def verify(folder: Path, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*_VERIFY, *arguments], cwd=folder, capture_output=True, text=True, timeout=timeout_s
    )
    print(done.stdout[-8000:], done.stderr[-3000:])
    return done


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_ends_survive_a_crash(tmp_path: Path) -> None:
    """All of `--ends` takes five minutes and is run by hand; this is a sixth of it."""
    arguments = ("--ends", "--seed", "5", "--only", "exactly_once", "--only", "crash")
    done = verify(tmp_path, *arguments, timeout_s=500)
    assert done.returncode == 0
    book = json.loads((tmp_path / "verification.json").read_text())
    assert sorted(each["pipeline"] for each in book["outcomes"]) == [
        "end to end",
        "from a table",
        "from files",
        "into Delta",
        "into DuckDB",
        "into PostgreSQL",
    ]
    assert {each["verdict"] for each in book["outcomes"]} == {"kept"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quick_preset_keeps_every_promise_and_its_controls_show(tmp_path: Path) -> None:
    """The same schedules each time; new ones are what `sparkonce verify --minutes` is for."""
    seed = 14
    done = verify(tmp_path, "--seed", str(seed), timeout_s=850)
    assert done.returncode == 0
    assert "Every promise was kept." in done.stdout
    book = json.loads((tmp_path / "verification.json").read_text())
    verdicts = {(each["pipeline"], each["verdict"]) for each in book["outcomes"]}
    assert {verdict for _, verdict in verdicts} == {"kept", "shown"}
    for pipeline in ("producer", "stateless", "stateful", "topics", "batch"):
        assert (pipeline, "kept") in verdicts
    page = (tmp_path / "verification.html").read_text()
    assert "Every promise was kept" in page
    assert f"{seed}" in page


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pipeline_that_is_wrong_is_caught_and_its_schedule_shrunk(
    tmp_path: Path, seed: int
) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    done = verify(
        tmp_path,
        "--pipeline", "wrong.py", "--only", "crash", "--brokers", "1", "--seed", str(seed),
        timeout_s=280,
    )  # fmt: skip
    assert done.returncode == 1
    assert "A promise was broken" in done.stdout
    (outcome,) = json.loads((tmp_path / "verification.json").read_text())["outcomes"]
    assert outcome["verdict"] == "broken"
    assert {each["defect"] for each in outcome["findings"]} >= {"repeated"}
    assert len(outcome["shrunk"]) == 1
    again = verify(
        tmp_path,
        "--pipeline", "wrong.py", "--replay", "1", "--brokers", "1",
        timeout_s=280,
    )  # fmt: skip
    assert again.returncode == 1
    first, second = json.loads((tmp_path / "verification.json").read_text())["outcomes"]
    assert (second["schedule"], second["seed"]) == (first["schedule"], first["seed"])
    assert second["verdict"] == "broken"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pipeline_of_the_documentation(tmp_path: Path, seed: int) -> None:
    (code,) = re.findall(r"```python\n(# my_job\.py.*?)```", DOCS.read_text(), re.S)
    (tmp_path / "my_job.py").write_text(code)
    done = verify(
        tmp_path,
        "--pipeline", "my_job.py", "--only", "crash", "--brokers", "1", "--seed", str(seed),
        timeout_s=280,
    )  # fmt: skip
    assert done.returncode == 0
    (outcome,) = json.loads((tmp_path / "verification.json").read_text())["outcomes"]
    assert (outcome["pipeline"], outcome["verdict"]) == ("my_job", "kept")
    assert any(each["kind"] == "kill" for each in outcome["story"])


def test_another_seed_than_the_books_is_refused(tmp_path: Path) -> None:
    book = {"format": 1, "seed": 5, "started": "", "versions": {}, "elapsed_s": 0.0, "outcomes": []}
    (tmp_path / "verification.json").write_text(json.dumps(book))
    done = verify(tmp_path, "--seed", "6", timeout_s=100)
    assert done.returncode == 1
    assert "was begun with seed 5, not 6" in done.stderr


def test_a_file_without_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    done = verify(tmp_path, "--pipeline", "empty.py", timeout_s=100)
    assert done.returncode == 1
    assert "no function run(job)" in " ".join(done.stderr.split())
