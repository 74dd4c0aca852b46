"""An executor is lost in mid-batch, and what Spark computes again are other rows than before: they
are never decided together with those that are there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oracle import settle, values
from parts import a_topic, wait_until
from recomputed import ROWS
from sparkonce.local import LocalKafka
from sparkonce.verify.child import interpreted_variable

pytestmark = [pytest.mark.timeout(200), pytest.mark.slow]
_TESTS = Path(__file__).parents[1]
NOTICED = "Spark computed a part of the batch again while the rest of it was written"


@contextmanager
def driver(
    kind: str, sink: str, folder: Path, servers: str = "", topic: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "service").write_text("0")
    (folder / "input").mkdir()
    for part in range(2):
        first = part * ROWS // 2
        ids = pa.table({"id": pa.array(range(first, first + ROWS // 2), pa.int64())})
        pq.write_table(ids, folder / "input" / f"{part}.parquet")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(_TESTS / "recomputed.py"), kind, sink, folder, servers, topic],
            env=os.environ
            | interpreted_variable()
            | {"PYTHONPATH": f"{_TESTS}:{_TESTS.parent / 'src'}"},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lose_an_executor(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Half of the tasks behind the shuffle are done, the others held, one on each executor."""

    def all_held() -> list[Path]:
        assert process.poll() is None, (folder / "log").read_text()[-5000:]
        return [*folder.glob("held.*")]

    wait_until(lambda: len(all_held()) == 2, "both executors hold a task", 100)
    (folder / "service").write_text("1")
    os.kill(int(all_held()[0].suffix[1:]), signal.SIGKILL)
    (folder / "released").touch()


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_rows_of_two_computations_are_not_put_into_a_table(tmp_path: Path, kind: str) -> None:
    with driver(kind, "duckdb", tmp_path) as process:
        lose_an_executor(process, tmp_path)
        code = process.wait(90)
    said = (tmp_path / "log").read_text()
    assert code == 0, said[-5000:]
    assert said.count(NOTICED) == 1
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        found = connection.sql("SELECT id FROM target").fetchall()
    assert sorted(number for (number,) in found) == [*range(ROWS)]


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_rows_of_two_computations_are_not_written_to_kafka(
    kafka: LocalKafka, tmp_path: Path, kind: str
) -> None:
    servers = kafka.bootstrap_servers
    with a_topic(kafka) as topic:
        with driver(kind, "kafka", tmp_path, servers, topic) as process:
            lose_an_executor(process, tmp_path)
            code = process.wait(90)
        said = (tmp_path / "log").read_text()
        assert code == 0, said[-5000:]
        assert said.count(NOTICED) == 1
        assert sorted(int(value or b"") for value in values(servers, topic)) == [*range(ROWS)]
        settle(servers, topic)


def test_what_was_shuffled_and_lost_before_the_write_is_not_written(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    """Spark has run both shuffles as jobs of their own, and no task fails in the one that writes:
    it computes what is missing of them first, from places that are others now."""
    servers = kafka.bootstrap_servers
    with a_topic(kafka) as topic:
        with driver("between", "kafka", tmp_path, servers, topic) as process:

            def is_shuffled() -> bool:
                assert process.poll() is None, (tmp_path / "log").read_text()[-5000:]
                return (tmp_path / "shuffled").exists()

            wait_until(is_shuffled, "all is shuffled", 100)
            ran = [*tmp_path.glob("ran.*")]
            assert len(ran) == 2, "each executor has a part"
            (tmp_path / "service").write_text("1")
            os.kill(int(ran[0].suffix[1:]), signal.SIGKILL)
            code = process.wait(90)
        said = (tmp_path / "log").read_text()
        assert code == 0, said[-5000:]
        assert said.count(NOTICED) == 1
        assert sorted(int(value or b"") for value in values(servers, topic)) == [*range(ROWS)]
        settle(servers, topic)


def test_where_a_new_plan_would_not_compute_all_anew_nothing_is_written(tmp_path: Path) -> None:
    with driver("kept", "duckdb", tmp_path) as process:
        lose_an_executor(process, tmp_path)
        code = process.wait(90)
    said = (tmp_path / "log").read_text()
    assert code != 0
    assert said.count(NOTICED) == 1
    assert re.search(r"BatchFailed: .*Nothing was written\. .*LogicalRDD.*: make it anew", said)
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        assert connection.sql("SELECT count(*) FROM target").fetchall() == [(0,)]
