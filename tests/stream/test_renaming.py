"""On a local disk Spark renames files without other processes, in our queries and in no others."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkonce.stream.pipeline import Pipeline
from sparkonce.stream.renaming import SETTING, renaming_plainly
from stream_jobs import MakeJob

_SPARKS_OWN = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
)


@pytest.mark.parametrize(("own", "expected"), [(None, "FileSystemBased"), (_SPARKS_OWN, "Context")])
def test_a_query_has_it_and_its_session_has_not(
    spark: SparkSession,
    new_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    own: str | None,
    expected: str,
) -> None:
    seen: list[str | None] = []
    call = Pipeline.__call__

    def look(self: Pipeline, frame: DataFrame, batch: int) -> None:
        seen.append(frame.sparkSession.conf.get(SETTING, None))
        call(self, frame, batch)

    monkeypatch.setattr(Pipeline, "__call__", look)
    session = spark.newSession()
    if own:
        session.conf.set(SETTING, own)
    new_job(count=10).start(session).awaitTermination()
    assert seen and all(value and expected in value for value in seen)
    assert session.conf.get(SETTING, None) == own


def test_elsewhere_it_is_left_to_spark(spark: SparkSession) -> None:
    session = spark.newSession()
    with renaming_plainly(session, is_local=False):
        assert session.conf.get(SETTING, None) is None
