"""State agrees with the output that became visible, whatever the crash and whatever the operation.

The outside service answers 2 until the driver is killed and 100 afterwards. A sum that was told
must go on from what was told; every value counts once, under one answer or the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs import Job, apart
from oracle import read, settle
from sparkonce.errors import SparkonceError
from sparkonce.local import LocalKafka
from stream_jobs import COUNT, PROVIDERS, STORE, MakeJob, fill, jobs_on, sums_told

CASES = [
    *(("gated", store, point) for store in PROVIDERS for point in ("produce:last", "end:answered")),
    ("windowed", "hdfs", "end:answered"),
    ("windowed", "rocksdb", "offsets"),
    ("joined", "hdfs", "end:answered"),
    ("processed", "rocksdb", "end:answered"),
]
BEFORE, AFTER = 2, 100

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def killed(
    _one_broker: LocalKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str, str], Job]]:
    """Drivers killed in their second batch; then the service changes its mind."""
    folder = tmp_path_factory.mktemp("state")
    service = folder / "service"
    service.write_text(str(BEFORE))
    with jobs_on(_one_broker, folder) as new_job:
        jobs = {
            (kind, store, point): new_job(
                kind=kind,
                hold_at=point,
                hold_time=2,
                service=str(service),
                conf={STORE: PROVIDERS[store]},
            )
            for kind, store, point in CASES
        }
        with apart(list(jobs.values())) as process:
            process.kill()
        service.write_text(str(AFTER))
        yield jobs


def outputs(job: Job) -> dict[bytes, list[int]]:
    """What was told of each key, in order."""
    settle(job.servers, job.target)
    return sums_told(job)


@pytest.mark.parametrize(("kind", "store", "point"), CASES)
def test_state_goes_on_from_what_was_told(
    spark: SparkSession,
    killed: dict[tuple[str, str, str], Job],
    kind: str,
    store: str,
    point: str,
) -> None:
    job = killed[kind, store, point]
    job.run(spark)
    if kind == "gated":
        check_sums(outputs(job), answers=[BEFORE, BEFORE if point == "end:answered" else AFTER])
    elif kind == "processed":
        check_sums(outputs(job), answers=[1, 1, 1])
    elif kind == "windowed":
        check_windows(outputs(job))
    else:
        values = Counter(record.value for record in read(job.servers, job.target))
        assert len(values) == COUNT
        assert set(values.values()) == {1}


@pytest.mark.parametrize("store", PROVIDERS)
def test_a_batch_that_is_run_again_leaves_the_state_of_its_last_attempt(
    spark: SparkSession, new_job: MakeJob, tmp_path: Path, store: str
) -> None:
    """On disk as well, where the next start looks for it."""
    service = tmp_path / "service"
    service.write_text(str(BEFORE))
    job = new_job(
        kind="weighed",
        count=400,
        service=str(service),
        conf={STORE: PROVIDERS[store]},
    )

    def fail_once(point: str) -> None:
        if point == "offsets" and service.read_text() == str(BEFORE):
            service.write_text(str(AFTER))
            raise SparkonceError("the first attempt ends here")

    job.run(spark, fail_once)
    fill(job.servers, job.source, 400, COUNT - 400)
    job.run(spark)
    check_sums(outputs(job), answers=[AFTER])


def check_sums(told: dict[bytes, list[int]], answers: list[int]) -> None:
    """Each batch added its number of values times the answer of the attempt that was visible."""
    assert sorted(told) == [str(digit).encode() for digit in range(10)]
    for key, sums in told.items():
        weights = [*answers, *[answers[-1] if answers[-1] == 1 else AFTER] * len(sums)]
        counted = 0
        for before, after, weight in zip([0, *sums], sums, weights, strict=False):
            added, rest = divmod(after - before, weight)
            assert rest == 0 and added > 0, (key, sums)
            counted += added
        assert counted == COUNT // 10, (key, sums)


def check_windows(told: dict[bytes, list[int]]) -> None:
    """Every window that is complete is told once, and counts all of its values."""
    assert told.keys() >= {str(start).encode() for start in range(0, COUNT - 200, 100)}
    assert set(map(tuple, told.values())) == {(100,)}
