"""Spark's checkpoint of a query: what was planned, what was finished, and what we finish for it.

Reads `offsets/<batch>`, `commits/<batch>` and `metadata`; writes a missing `commits/<batch>` before
a query starts, or where to begin when the checkpoint was lost. Local folders are read
as files, others through Hadoop, as Spark does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from sparkonce.stream.ledger import LedgerError, Offsets

_VERSION_LINE = "v1"
_STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@dataclass(frozen=True, slots=True)
class Planned:
    """`offsets/<batch>`: where a batch ends, written before it runs."""

    watermark_ms: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A file, and when it was last changed, as it was when Spark saw it first."""

    path: str
    changed_ms: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a query's folder says, at one moment."""

    query: str | None
    planned: int | None
    committed: int | None


class CheckpointFolder:
    """The files of one query, by what they mean."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._spark = spark
        self._files: _Files = _files(spark, location)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of a local disk, or mounted like one."""
        return isinstance(self._files, _LocalFiles)

    def read(self) -> Checkpoint:
        metadata = self._files.read("metadata")
        return Checkpoint(
            json.loads(metadata)["id"] if metadata else None,
            max(self._files.numbers("offsets"), default=None),
            max(self._files.numbers("commits"), default=None),
        )

    def planned(self, batch: int) -> Planned:
        text = self._files.read(f"offsets/{batch}")
        if text is None:
            raise LedgerError(
                f"{self.location}/offsets/{batch} is missing: the checkpoint was changed while "
                "the query ran; give each query a checkpointLocation of its own"
            )
        version, metadata, *sources = text.split("\n")
        if version != _VERSION_LINE:
            raise LedgerError(
                f"{self.location}/offsets/{batch} is of version {version}, known is "
                f"{_VERSION_LINE}: this version of Spark writes its offset log in another way"
            )
        return Planned(json.loads(metadata).get("batchWatermarkMs", 0), tuple(sources))

    def listed_files(self, source: int, number: int) -> Iterator[Listed]:
        """What a file source has listed under this number of its log."""
        name = f"sources/{source}/{number}"
        # Every tenth has all before it too, and their own files go after a while.
        text = self._files.read(name) or self._files.read(f"{name}.compact") or ""
        for line in text.splitlines()[1:]:
            fields = json.loads(line)
            if fields["batchId"] == number:
                yield Listed(fields["path"], fields["timestamp"])

    def finish(self, batch: int) -> None:
        """Write the commit that Spark did not come to; the batch's own watermark is a safe next
        one: never too late, only later."""
        former = self._files.read(f"commits/{batch - 1}") if batch else None
        fields = json.loads(former.splitlines()[1]) if former else {}
        if fields.get("stateUniqueIds") or self._will_have_state_ids():
            raise LedgerError(
                f"batch {batch} of {self.location} was written and not committed by Spark, and its "
                f"state has ids that only Spark knows ({_STATE_FORMAT}=2). Set that to 1 for "
                "pipelines that must be exactly once; this one can go on from the ledger, "
                "with an empty checkpointLocation and lostState=empty"
            )
        watermark_ms = self.planned(batch).watermark_ms
        commit = json.dumps(fields | {"nextBatchWatermarkMs": watermark_ms}, separators=(",", ":"))
        self._files.write(f"commits/{batch}", f"{_VERSION_LINE}\n{commit}")

    def _will_have_state_ids(self) -> bool:
        """For the first batch, which has no former commit to tell by."""
        return self._spark.conf.get(_STATE_FORMAT) != "1" and bool(self._files.numbers("state"))

    def start_from(self, source: int, offsets: Offsets) -> None:
        """Where a Kafka source of a new checkpoint begins, whatever its startingOffsets are."""
        text = json.dumps(offsets, separators=(",", ":"))
        # The zero byte is there for Spark 2.1 (KafkaSourceInitialOffsetWriter).
        self._files.write(f"sources/{source}/0", f"\0{_VERSION_LINE}\n{text}")

    def begin_behind(self, sources: Sequence[Offsets | str]) -> None:
        """Let a new checkpoint begin where a batch ended that it never saw. Without state only:
        Spark would look for that of the batch."""
        lines = [
            each if isinstance(each, str) else json.dumps(each, separators=(",", ":"))
            for each in sources
        ]
        # The commit first: a batch that is planned and not committed would be run.
        self._files.write("commits/0", f"{_VERSION_LINE}\n{{}}")
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        self._files.write("offsets/0", "\n".join([_VERSION_LINE, metadata, *lines]))

    def name_query(self, query: str) -> None:
        """Give a new checkpoint its query id before Spark does."""
        self._files.write("metadata", json.dumps({"id": query}, separators=(",", ":")))


class _Files(Protocol):
    def read(self, name: str) -> str | None: ...

    def numbers(self, folder: str) -> list[int]: ...

    def write(self, name: str, text: str) -> None: ...


def _files(spark: SparkSession, location: str) -> _Files:
    """Where Spark will look: Hadoop says what a location means, relative ones and odd ones too."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    url = system.makeQualified(path).toUri()
    if url.getScheme() == "file":
        return _LocalFiles(Path(url.getPath()))
    return _HadoopFiles(spark, location)


class _LocalFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def numbers(self, folder: str) -> list[int]:
        try:
            names = [path.name for path in (self._folder / folder).iterdir()]
        except FileNotFoundError:
            return []
        return [int(name) for name in names if name.isdigit()]

    def write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A checksum of an earlier file of this name would make Hadoop refuse the new one.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)


class _HadoopFiles:
    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils
        self._root = self._path(location)
        self._system = self._root.getFileSystem(spark._jsc.hadoopConfiguration())

    def read(self, name: str) -> str | None:
        path = self._path(self._root, name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def numbers(self, folder: str) -> list[int]:
        path = self._path(self._root, folder)
        if not self._system.exists(path):
            return []
        names = [status.getPath().getName() for status in self._system.listStatus(path)]
        return [int(name) for name in names if name.isdigit()]

    def write(self, name: str, text: str) -> None:
        path = self._path(self._root, name)
        draft = self._path(path.getParent(), f".{path.getName()}.draft")
        stream = self._system.create(draft, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        # Hadoop's rename does not replace a file; a start that is tried again writes it anew.
        self._system.delete(path, False)
        if not self._system.rename(draft, path):
            raise LedgerError(f"{path} could not be written: look at the file system's log")
