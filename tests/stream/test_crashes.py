"""A driver killed at each point of the protocol; its successor neither loses nor repeats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs import Job, apart
from oracle import committed_offset, read, settle
from sparkonce.local import LocalKafka
from stream_jobs import COUNT, EXPECTED, PARTITIONS, jobs_on

POINTS = ["fence", "open", "produce:first", "produce:last", "offsets", "end", "end:answered"]
# Where rows have a key tasks take turns at a partition; the verifier draws the other points.
CRASHES = [("keyless", point) for point in POINTS]
CRASHES += [("keyed", "produce:last"), ("keyed", "end:answered")]
ROUTED = [("routed", "produce:last"), ("routed", "end:answered")]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def killed(
    _one_broker: LocalKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Job]]:
    """Jobs whose driver was killed, each at another point of its second batch."""
    folder = tmp_path_factory.mktemp("killed")
    with jobs_on(_one_broker, folder) as new_job:
        jobs = {
            (kind, point): new_job(kind=kind, hold_at=point, hold_time=1 if point == "fence" else 2)
            for kind, point in [*CRASHES, *ROUTED]
        }
        with apart(list(jobs.values())) as process:
            process.kill()
        yield jobs


@pytest.mark.parametrize(("kind", "point"), CRASHES)
def test_a_driver_killed_at(
    spark: SparkSession, killed: dict[tuple[str, str], Job], kind: str, point: str
) -> None:
    job = killed[kind, point]
    check_recovery(spark, job, [job.target])


@pytest.mark.parametrize(("kind", "point"), ROUTED)
def test_a_driver_killed_that_writes_to_two_topics(
    spark: SparkSession, killed: dict[tuple[str, str], Job], kind: str, point: str
) -> None:
    job = killed[kind, point]
    check_recovery(spark, job, [job.target, f"{job.target}-2"])


def check_recovery(spark: SparkSession, job: Job, targets: list[str]) -> None:
    offsets = Path(job.checkpoint) / "offsets"
    if job.hold_at != "fence":
        planned = max(int(each.name) for each in offsets.iterdir() if each.name.isdigit())
        assert planned == 1, "it was killed in its second batch"
    job.run(spark)
    seen = [record.value or b"" for target in targets for record in read(job.servers, target)]
    assert sorted(seen) == EXPECTED
    for target in targets:
        settle(job.servers, target)
    ends = [committed_offset(job.servers, job.name, job.source, p) for p in range(PARTITIONS)]
    assert sum(ends) == COUNT
