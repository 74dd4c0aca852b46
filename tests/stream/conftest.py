"""Jobs that go with their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkonce.local import LocalKafka
from stream_jobs import MakeJob, jobs_on


@pytest.fixture
def new_job(kafka: LocalKafka, tmp_path: Path) -> Iterator[MakeJob]:
    with jobs_on(kafka, tmp_path) as make:
        yield make
