"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = 'pytest_plugins = ["sparkonce.verify.plugin"]\n'
TESTS = """
import pytest
from sparkonce import TransactionalProducer
from sparkonce.verify import LoseResponse

def write(servers, topic, values):
    with TransactionalProducer({"bootstrap.servers": servers, "transactional.id": topic}) as ours:
        ours.init_transactions()
        for value in values:
            with ours.transaction():
                ours.produce(topic, value)

def test_a_lost_answer(kafka, faults, check_exactly_once):
    kafka.create_topic("orders")
    lost = LoseResponse("EndTxn", nth=2)
    faults.add(lost)
    sent = [f"order {number}" for number in range(5)]
    write(faults.bootstrap_servers, "orders", sent)
    assert faults.fired(lost) == 1
    check_exactly_once("orders", sent, lane=lambda identity: "all")

def test_something_is_wrong(kafka, check_exactly_once):
    kafka.create_topic("doubled")
    write(kafka.bootstrap_servers, "doubled", ["a", "b", "b"])
    check_exactly_once("doubled", ["a", "b", "c"])

def test_a_whole_pipeline(verify_pipeline):
    from sparkonce.verify.schedule import Kill
    outcomes = verify_pipeline(
        "sparkonce.verify.pipelines.relay", schedules=[(Kill(point="offsets", nth=2),)]
    )
    assert [each.verdict for each in outcomes] == ["kept"]
"""


@pytest.mark.slow
def test_its_fixtures_pass_what_is_right_and_fail_what_is_wrong(tmp_path: Path, seed: int) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_orders.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}",
         f"--sparkonce-seed={seed}", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        timeout=110,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert "1 failed, 2 passed" in done.stdout
    assert f"--sparkonce-seed={seed}" in done.stdout
    assert "lost: 1 (confluent-kafka), such as c" in done.stdout
    assert "repeated: 1 (confluent-kafka), such as b" in done.stdout
