"""`sparkonce verify --pipeline`: a pipeline of the user's own, right and wrong."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from verify_command import verify

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
    print(f"{job.name} goes on", flush=True)
    while position != ends:
        messages = [m for m in consumer.consume(job.per_batch, 0.5) if m.error() is None]
        if not messages:
            continue  # nothing was written: who is killed now repeats nothing
        for message in messages:
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


def crash(folder: Path, program: str, seed: int) -> subprocess.CompletedProcess[str]:
    return verify(
        folder,
        "--pipeline", program, "--only", "crash", "--brokers", "1", "--seed", str(seed),
        timeout_s=280,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pipeline_that_is_wrong_is_caught_and_its_schedule_shrunk(
    tmp_path: Path, seed: int
) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    done = crash(tmp_path, "wrong.py", seed)
    assert done.returncode == 1
    assert "A promise was broken" in done.stdout
    (outcome,) = json.loads((tmp_path / "verification.json").read_text())["outcomes"]
    assert outcome["verdict"] == "broken"
    assert {each["defect"] for each in outcome["findings"]} >= {"repeated"}
    assert len(outcome["shrunk"]) == 1
    told = [each["text"] for each in outcome["story"] if each["kind"] == "log"]
    assert told == ["verify-t1 goes on"] * 2, "of each of its lives"
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
    done = crash(tmp_path, "my_job.py", seed)
    assert done.returncode == 0
    (outcome,) = json.loads((tmp_path / "verification.json").read_text())["outcomes"]
    assert (outcome["pipeline"], outcome["verdict"]) == ("my_job", "kept")
    assert any(each["kind"] == "kill" for each in outcome["story"])


def test_a_file_without_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    done = verify(tmp_path, "--pipeline", "empty.py", timeout_s=100)
    assert done.returncode == 1
    assert "no function run(job)" in " ".join(done.stderr.split())
