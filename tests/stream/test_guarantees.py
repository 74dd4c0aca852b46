"""Each guarantee does precisely what it says, also where it promises less.

The weaker ones are the controls: the same faults under which `exactly_once` neither loses nor
repeats make them lose or repeat, as their definition has it. Crashes are the verifier's part
(tests/console/test_verify.py): it kills every pipeline under every guarantee.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from jobs import Job, apart
from oracle import values
from sparkonce.guarantees import Guarantee
from sparkonce.verify import FaultProxy, LoseRequest, LoseResponse
from stream_jobs import COUNT, EXPECTED, MakeJob, write

pytestmark = pytest.mark.timeout(300)


def counted(job: Job) -> tuple[int, int]:
    """How many values are lost, and how many were written more than once."""
    seen = Counter(values(job.servers, job.target))
    assert seen.keys() <= set(EXPECTED), "something that was never in the source"
    return len(EXPECTED) - len(seen), sum(count > 1 for count in seen.values())


def test_under_at_most_once_state_counts_what_was_not_written(
    spark: SparkSession, new_job: MakeJob
) -> None:
    """The batch that is passed over is run for the sake of its state; its output is lost."""
    job = new_job(guarantee="at_most_once", kind="counting", hold_at="end:answered", hold_time=2)
    with apart([job]) as process:
        process.kill()
    job.run(spark)
    told = values(job.servers, job.target)
    assert len(told) == 20, "ten keys in two of three batches"
    assert sorted(told)[-10:] == [str(COUNT // 10).encode()] * 10 or told.count(b"100") == 10


@pytest.mark.parametrize(
    ("guarantee", "loses", "repeats"),
    [
        ("exactly_once", False, False),
        ("at_least_once", False, False),
        ("at_most_once", True, False),
        ("none", True, False),
    ],
)
def test_requests_that_never_arrive(
    spark: SparkSession, new_job: MakeJob, seed: int, guarantee: str, loses: bool, repeats: bool
) -> None:
    job = new_job(guarantee=guarantee)
    fault = LoseRequest("Produce", nth=2, every=4, times=3)
    with FaultProxy(job.servers, faults=[fault], seed=seed) as proxy:
        throughout = replace(job, servers=proxy.bootstrap_servers, options=IMPATIENT[guarantee])
        frame, _ = job.frame(spark)
        reports = write(throughout, frame, guarantee=guarantee, **IMPATIENT[guarantee])
        assert proxy.fired(fault) >= 1
    lost, repeated = counted(job)
    assert (lost > 0, repeated > 0) == (loses, repeats), f"lost {lost}, repeated {repeated}"
    if guarantee == "at_most_once":
        assert sum(report.lost for report in reports) >= lost > 0, "what was lost is told"


IMPATIENT = {
    guarantee.value: {"kafka.request.timeout.ms": "1000", "kafka.delivery.timeout.ms": "60000"}
    for guarantee in Guarantee
}


def test_acknowledgements_that_never_arrive_repeat_nothing(
    spark: SparkSession, new_job: MakeJob, seed: int
) -> None:
    job = new_job()
    fault = LoseResponse("Produce", nth=2, every=4, times=3)
    with FaultProxy(job.servers, faults=[fault], seed=seed) as proxy:
        through = replace(job, servers=proxy.bootstrap_servers)
        write(through, job.frame(spark)[0], **IMPATIENT["exactly_once"])
        assert proxy.fired(fault) >= 1
    assert counted(job) == (0, 0)
