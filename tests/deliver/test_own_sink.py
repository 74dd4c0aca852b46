"""A sink of one's own, as docs/deliver.md has it: its code is taken from there and run."""

from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

import sparkonce
from sparkonce.deliver import register
from sparkonce.errors import FatalError

_PAGE = (Path(__file__).parents[2] / "docs" / "deliver.md").read_text()
_SECTION = _PAGE.partition("## Adding a sink of your own\n")[2].partition("\n## ")[0]
*_FILE, _USE, _SUITE = re.findall(r"^```python\n(.*?)^```$", _SECTION, re.M | re.S)


def _module(name: str, code: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(code, f"docs/deliver.md, {name}", "exec"), module.__dict__)
    return module


sink = _module("sqlite_sink", "\n\n".join(_FILE))
TestSqlite = _module("sqlite_suite", _SUITE).TestSqlite


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three batches of three rows."""
    folder = tmp_path / "files"
    folder.mkdir()
    for batch in range(3):
        (folder / f"{batch}.txt").write_text("".join(f"{batch}{row}\n" for row in range(3)))
    return folder


def run(spark: SparkSession, files: Path, path: Path, fail_at: str | None = None) -> None:
    register("sqlite", sink.target)
    times = 0

    def observe(point: str) -> None:
        nonlocal times
        times += point == fail_at
        if point == fail_at and times == 2:
            raise FatalError(f"stopped at {point}")

    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files))
    (
        sparkonce.write_stream(lines)
        .format("sqlite")
        .option("path", str(path))
        .option("dbtable", "lines")
        .option("createTable", "true")
        .option("pipeline", "lines")
        .option("checkpointLocation", str(path.with_suffix(".checkpoint")))
        .trigger(availableNow=True)
        .observe(observe)
        .start()
        .awaitTermination()
    )


@pytest.mark.parametrize("point", ["offsets", "end", "end:answered"])
def test_a_driver_that_fails_at_a_step(
    spark: SparkSession, files: Path, tmp_path: Path, point: str
) -> None:
    path = tmp_path / "shop.sqlite"
    with pytest.raises(Exception, match="stopped at"):
        run(spark, files, path, fail_at=point)
    run(spark, files, path)
    with closing(sqlite3.connect(path)) as connection:
        found = [value for (value,) in connection.execute("SELECT value FROM lines")]
    assert sorted(found) == [f"{batch}{row}" for batch in range(3) for row in range(3)]


def test_how_it_is_used(spark: SparkSession, files: Path) -> None:
    use = _module("sqlite_use", _USE)
    assert use.into_sqlite(spark.readStream.text(str(files)))
