"""`sparkonce verify --pipeline`: a pipeline of the user's own, right and wrong."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from verify_command import verify

DOCS = Path(__file__).parents[2] / "docs" / "verify.md"

# Progress behind the data: whoever is killed in between writes it again.
WRONG = """
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

POINTS = ("written",)
MARKED = False  # it doesn't even claim transactions

def run(job):
    consumer = Consumer({
        "bootstrap.servers": job.bootstrap_servers,
        "group.id": job.name,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,  # the last thing may be a transaction's end, and no record
    })
    producer = Producer({"bootstrap.servers": job.bootstrap_servers, "enable.idempotence": True})
    count = len(consumer.list_topics(job.input_topic, 30).topics[job.input_topic].partitions)
    parts = [TopicPartition(job.input_topic, index) for index in range(count)]
    position = {p.partition: max(0, p.offset) for p in consumer.committed(parts, timeout=30)}
    consumer.assign([TopicPartition(job.input_topic, i, at) for i, at in position.items()])
    print(f"{job.name} goes on", flush=True)
    at_end = set()
    while len(at_end) < count:
        told = consumer.consume(job.per_batch, 0.5)
        at_end |= {m.partition() for m in told if is_end(m)}
        messages = [m for m in told if m.error() is None]
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


def is_end(message):
    return message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF
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
    outcomes = kept(tmp_path)
    broken = [each for each in outcomes if each["verdict"] == "broken"]
    assert broken
    assert any(is_repeated(each) for each in broken)
    first = next(each for each in broken if is_repeated(each))
    assert len(first["shrunk"]) == 1
    told = [each["text"] for each in first["story"] if each["kind"] == "log"]
    assert len(told) >= 2, "of each of its lives"
    assert set(told) == {f"verify-t{first['number']} goes on"}
    again = verify(
        tmp_path,
        "--pipeline", "wrong.py", "--replay", str(first["number"]), "--brokers", "1",
        timeout_s=280,
    )  # fmt: skip
    assert again.returncode == 1
    *former, second = kept(tmp_path)
    assert former == outcomes
    assert (second["schedule"], second["seed"]) == (first["schedule"], first["seed"])
    assert second["verdict"] == "broken"


def kept(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "verification.json").read_text())["outcomes"]
    return found


def is_repeated(outcome: dict[str, Any]) -> bool:
    return "repeated" in {each["defect"] for each in outcome["findings"]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pipeline_of_the_documentation(tmp_path: Path, seed: int) -> None:
    (code,) = re.findall(r"```python\n(# my_job\.py.*?)```", DOCS.read_text(), re.S)
    (tmp_path / "my_job.py").write_text(code)
    done = crash(tmp_path, "my_job.py", seed)
    assert done.returncode == 0
    outcomes = kept(tmp_path)
    assert {(each["pipeline"], each["verdict"]) for each in outcomes} == {("my_job", "kept")}
    for outcome in outcomes:
        assert any(each["kind"] == "kill" for each in outcome["story"])


def test_a_file_without_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    done = verify(tmp_path, "--pipeline", "empty.py", timeout_s=100)
    assert done.returncode == 1
    assert "no function run(job)" in " ".join(done.stderr.split())
