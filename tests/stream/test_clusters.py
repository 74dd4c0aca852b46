"""Executors as processes of their own, three brokers, and both killed with -9 in mid-batch.

The driver runs apart, since Spark has one context a process; what it wrote is read here.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import Job, apart
from oracle import settle, values
from parts import marked_processes, wait_until
from sparkonce.local import LocalKafka
from sparkonce.local.spark import LocalSpark
from stream_jobs import EXPECTED, PROVIDERS, STORE, MakeJob, jobs_on, sums_told

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def standalone() -> Iterator[str]:
    with LocalSpark(workers=2) as cluster:
        yield cluster.master_url


@pytest.fixture
def safe_job(kafka3: LocalKafka, tmp_path: Path) -> Iterator[MakeJob]:
    """Three replicas, two of them in sync."""
    with jobs_on(kafka3, tmp_path, replication=3, config={"min.insync.replicas": "2"}) as make:
        yield make


@pytest.fixture(params=["local-cluster[2,1,1024]", "standalone"])
def master(request: pytest.FixtureRequest) -> str:
    if request.param == "standalone":
        return str(request.getfixturevalue("standalone"))
    return str(request.param)


def executors(mark: str) -> list[int]:
    """Their process ids."""
    backend = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
    return sorted(pid for pid, command in marked_processes(mark).items() if backend in command)


def ended(process: object, job: Job) -> None:
    code = process.wait(120)  # type: ignore[attr-defined]
    assert code == 0, job.log.read_text()[-5000:]


def test_what_an_executor_remembers_of_a_lost_attempt_is_not_gone_on_from(
    safe_job: MakeJob, master: str, tmp_path: Path
) -> None:
    """Both executors have computed their part of the first batch when one of them is killed. The
    other part is computed again by the one that replaces it, and goes back with the next batch."""
    service = tmp_path / "service"
    service.write_text("2")
    store = "rocksdb" if master.startswith("spark:") else "hdfs"
    job = safe_job(
        kind="weighed",
        hold_at="produce:last",
        service=str(service),
        master=master,
        conf={STORE: PROVIDERS[store]},
    )
    with apart([job]) as driver:
        wait_until(lambda: len(job.all_held) == 2, "both are held")
        service.write_text("100")
        os.kill(max(job.all_held), signal.SIGKILL)
        job.release()
        ended(driver, job)
    assert [*sums_told(job).values()] == [[4000, 8000, 10000]] * 10
    # State that has ids needs none.
    is_renewed = "it goes on in a new run" in job.log.read_text()
    assert is_renewed == (store == "hdfs")
    settle(job.servers, job.target)


def test_jobs_on_a_cluster_with_an_executor_killed_in_mid_batch(
    kafka3: LocalKafka, safe_job: MakeJob, master: str
) -> None:
    """Keyless and keyed rows and state; a task is held, its executor killed, the attempt given up
    and the batch run again on another."""
    mark = uuid.uuid4().hex
    context = {"spark.executorEnv.SPARKONCE_TEST_MARK": mark}
    jobs = [
        safe_job(
            kind="keyed", hold_at="produce:first", hold_time=2, master=master, context=context
        ),
        safe_job(kind="counting", master=master),
        safe_job(kind="keyless", master=master),
    ]
    held = jobs[0]
    with apart(jobs) as driver:
        before = executors(f"SPARKONCE_TEST_MARK={mark}")
        assert len(before) == 2
        victim = int(held.held.read_text())
        assert victim in before
        os.kill(victim, signal.SIGKILL)
        held.release()
        ended(driver, held)
    assert sorted(values(held.servers, held.target)) == EXPECTED
    assert sorted(values(held.servers, jobs[2].target)) == EXPECTED
    counts = values(held.servers, jobs[1].target)
    assert counts.count(b"100") == 10 and len(counts) == 30
    assert "attempt 1 of 3 was aborted" in held.log.read_text()
    settle(held.servers, held.target)


def test_a_broker_killed_in_mid_batch(kafka3: LocalKafka, safe_job: MakeJob) -> None:
    job = safe_job(kind="keyed", hold_at="offsets", hold_time=2)
    with apart([job]) as driver:
        victim = kafka3.coordinator_of(job.name)
        kafka3.kill_broker(victim)
        job.release()
        ended(driver, job)
        kafka3.start_broker(victim)
    assert sorted(values(job.servers, job.target)) == EXPECTED
    settle(job.servers, job.target)


def test_speculation_is_refused(safe_job: MakeJob) -> None:
    job = safe_job(count=0, context={"spark.speculation": "true"})
    with apart([job]) as driver:
        assert driver.wait(60) != 0
    assert "spark.speculation=true runs tasks twice" in job.log.read_text()
