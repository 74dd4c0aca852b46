"""One Spark for all tests of this room, and jobs that go with their test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jobs
import sparkonce
from sparkonce.local import LocalKafka
from stream_jobs import MakeJob, jobs_on


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["SPARKONCE_HISTORY"] = ""
    # Python workers import what jobs are made of.
    os.environ["PYTHONPATH"] = str(Path(jobs.__file__).parent)
    spark = sparkonce.session("tests", "local[2]")
    yield spark
    spark.stop()


@pytest.fixture
def new_job(kafka: LocalKafka, tmp_path: Path) -> Iterator[MakeJob]:
    with jobs_on(kafka, tmp_path) as make:
        yield make
