"""A Spark cluster of real processes: what runs where, what a kill does, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parts import is_running, wait_until
from sparkonce import TransactionalProducer
from sparkonce.errors import LocalError
from sparkonce.local import LocalKafka
from sparkonce.local.jars import connector_jars
from sparkonce.local.spark import LocalSpark

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


wait_for = partial(wait_until, timeout_s=60.0)

_ENVIRONMENT = {**os.environ, "PYSPARK_PYTHON": sys.executable}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalSpark]:
    with LocalSpark(workers=2) as spark:
        yield spark


def start(program: str, *args: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *args], stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT
    )


def last_json(process: subprocess.Popen[str]) -> Any:
    said, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(said.splitlines()[-1])


# Each task says that it has begun, and in which executor, and waits for the gate to open.
_GATED_JOB = """
import json, os, sys, time
from pathlib import Path
from sparkonce.sessions import session
from sparkonce.verify.disturb import executor_of

folder = Path(sys.argv[2])

def wait_at_gate(frames):
    executor = executor_of(os.getpid())
    for frame in frames:
        (folder / f"begun-{frame.id[0]}-{executor}").touch()
        deadline = time.monotonic() + 60
        while not (folder / "gate").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield frame.assign(executor=executor)

spark = session("gated", sys.argv[1])
rows = spark.range(2, numPartitions=2).mapInPandas(wait_at_gate, "id long, executor long").collect()
print(json.dumps(sorted([row.id, row.executor] for row in rows)))
"""


def begun(folder: Path) -> list[tuple[int, int]]:
    """The attempts so far: which row, in which executor."""
    names = [path.name.split("-") for path in folder.glob("begun-*")]
    return [(int(row), int(executor)) for _, row, executor in names]


@pytest.mark.slow
def test_a_job_survives_its_executor_and_then_a_worker(cluster: LocalSpark, tmp_path: Path) -> None:
    with start(_GATED_JOB, cluster.master_url, tmp_path) as job:
        wait_for(lambda: len(begun(tmp_path)) == 2, "both tasks")
        first = dict(begun(tmp_path))
        assert sorted(first.values()) == sorted(cluster.executor_pids())  # a process each

        os.kill(first[0], signal.SIGKILL)
        wait_for(lambda: len(begun(tmp_path)) == 3, "the second attempt of a task")
        second = set(cluster.executor_pids())
        assert len(second) == 2 and first[1] in second and first[0] not in second

        worker = cluster.worker_pid(1)
        cluster.kill_worker(1)
        assert not is_running(worker)
        (survivor,) = cluster.executor_pids()
        assert {pid for pid in second if is_running(pid)} == {survivor}
        with pytest.raises(LocalError, match="Worker 1 isn't running"):
            cluster.worker_pid(1)
        cluster.start_worker(1)
        wait_for(lambda: len(begun(tmp_path)) == 4, "an attempt on the new worker")

        (tmp_path / "gate").touch()
        rows = last_json(job)
    assert [row for row, _ in rows] == [0, 1]
    assert {executor for _, executor in rows} == {survivor, *_new(begun(tmp_path), first, second)}
    wait_for(lambda: not cluster.executor_pids(), "executors to end with their application")


def _new(attempts: list[tuple[int, int]], first: dict[int, int], second: set[int]) -> set[int]:
    return {executor for _, executor in attempts} - set(first.values()) - second


_SUBMITTED = """
import sys
from sparkonce.sessions import session
spark = session("submitted")
rows = (
    spark.read.format("kafka").option("kafka.bootstrap.servers", sys.argv[1])
    .option("subscribe", sys.argv[2]).load()
)
print(spark.sparkContext.master, rows.count())
"""


@pytest.mark.slow
def test_spark_submit_runs_a_kafka_job_on_the_cluster(
    cluster: LocalSpark, kafka: LocalKafka, tmp_path: Path
) -> None:
    kafka.create_topic("submitted", partitions=2)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "submitted"}
    with TransactionalProducer(settings) as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in range(7):
                producer.produce("submitted", f"value {number}")
    program = tmp_path / "app.py"
    program.write_text(_SUBMITTED)
    jars = ",".join(str(jar) for jar in connector_jars())
    submit = [Path(sys.executable).with_name("spark-submit"), "--master", cluster.master_url]
    said = subprocess.run(
        [*submit, "--jars", jars, program, kafka.bootstrap_servers, "submitted"],
        capture_output=True,
        text=True,
        env=_ENVIRONMENT,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.splitlines()[-1] == f"{cluster.master_url} 7"


_PARENT = """
import json, time
from sparkonce.local.spark import LocalSpark
from sparkonce.sessions import session
cluster = LocalSpark(workers=1).start()
spark = session("orphans", cluster.master_url)
spark.range(10).count()
driver = spark.sparkContext._gateway.proc.pid
pids = [driver, cluster.worker_pid(1), cluster._master.pid, *cluster.executor_pids()]
print(json.dumps([str(cluster.folder), pids]), flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_killing_the_parent_leaves_no_jvm_and_no_folder() -> None:
    with start(_PARENT) as parent:
        assert parent.stdout is not None
        folder, pids = json.loads(parent.stdout.readline())
        assert len(pids) == 4 and all(map(is_running, pids)) and Path(folder).exists()
        parent.kill()
        wait_for(lambda: not any(map(is_running, pids)), f"the end of {pids}")
    wait_for(lambda: not Path(folder).exists(), f"the end of {folder}")


def test_a_master_that_dies_at_the_start_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.worker.timeout never\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    cluster = LocalSpark()
    with pytest.raises(LocalError, match=r"(?s)The Spark master ended.*spark.worker.timeout"):
        cluster.start()
    with pytest.raises(LocalError, match="isn't running"):
        _ = cluster.folder


@pytest.mark.parametrize("sizes", [{"workers": 0}, {"cores": 0}, {"memory_mb": 100}])
def test_a_cluster_that_can_run_nothing_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(LocalError, match="can run nothing"):
        LocalSpark(**sizes)
