"""On a local disk Spark renames files without other processes, in our queries and in no others; and
a way of renaming that leaves files as they were is refused where state depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs import Job
from sparkonce.errors import ConfigError
from sparkonce.stream.pipeline import Pipeline
from sparkonce.stream.renaming import PLAINLY, SETTING, plainly
from stream_jobs import MakeJob

_SPARKS_OWN = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
)
_HIVES = "org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem"


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


def settings(session: SparkSession) -> dict[str, str]:
    values = {key: session.conf.get(key, None) for key in PLAINLY}
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize(
    "own", [{}, {SETTING: _SPARKS_OWN}, {"fs.file.impl": _HIVES}], ids=["none", "manager", "files"]
)
def test_a_query_has_it_and_its_session_has_not(
    session: SparkSession,
    new_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    own: dict[str, str],
) -> None:
    seen: list[dict[str, str]] = []
    call = Pipeline.__call__

    def look(self: Pipeline, frame: DataFrame, batch: int) -> None:
        seen.append(settings(frame.sparkSession))
        call(self, frame, batch)

    monkeypatch.setattr(Pipeline, "__call__", look)
    for key, value in own.items():
        session.conf.set(key, value)
    new_job(count=10).start(session).awaitTermination()
    assert seen == [own or PLAINLY]
    assert settings(session) == own


def test_elsewhere_it_is_left_to_spark(session: SparkSession) -> None:
    assert plainly(session, is_local=False) == {}


@pytest.fixture
def leaving(session: SparkSession) -> SparkSession:
    """A session with Spark's other way and Hive's files: what is there stays."""
    for key, value in (PLAINLY | {"fs.file.impl": _HIVES}).items():
        session.conf.set(key, value)
    return session


def test_files_that_stay_as_they_were_are_refused_for_state(
    leaving: SparkSession, new_job: MakeJob
) -> None:
    job: Job = new_job(count=10, kind="counting")
    with pytest.raises(ConfigError, match=SETTING) as refusal:
        job.start(leaving)
    assert job.checkpoint in str(refusal.value)
    assert list(Path(job.checkpoint).iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_by_its_name(
    session: SparkSession, new_job: MakeJob, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    job = new_job(count=10, kind="counting", checkpoint=str(tmp_path / "file" / "checkpoint"))
    with pytest.raises(ConfigError, match=r"checkpointLocation .*/file/checkpoint: .*not a dir"):
        job.start(session)


@pytest.mark.parametrize(("kind", "guarantee"), [("keyed", "exactly_once"), ("counting", "none")])
def test_where_no_state_must_agree_they_are_not(
    leaving: SparkSession, new_job: MakeJob, kind: str, guarantee: str
) -> None:
    new_job(count=10, kind=kind, guarantee=guarantee).start(leaving).awaitTermination()
