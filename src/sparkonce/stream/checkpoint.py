"""Spark's checkpoint of a query: what was planned, what was finished, and what we finish for it.

Reads `offsets/<batch>`, `commits/<batch>` and `metadata`; writes a missing `commits/<batch>` before
a query starts, or where to begin when the checkpoint was lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from sparkonce.stream.checkpoint_files import Files, LocalFiles, files_at, numbers
from sparkonce.stream.ledger import LedgerError, Offsets

_VERSION_LINE = "v1"
_WITH_STATE_IDS = "v2"
"""Of a commit that names the state of its batch (state store checkpoint format 2)."""

StateIds = Mapping[str, Sequence[Sequence[str]]]
"""By operator and partition, the ids of its state stores, as Spark's commit log has them."""


@dataclass(frozen=True, slots=True)
class Planned:
    """`offsets/<batch>`: where a batch ends, written before it runs."""

    watermark_ms: int
    sources: tuple[str, ...]
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings that hold for the query as long as it lives."""


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
        self.files: Files = files_at(spark, location)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of a local disk, or mounted like one."""
        return isinstance(self.files, LocalFiles)

    def read(self) -> Checkpoint:
        metadata = self.files.read("metadata")
        return Checkpoint(
            json.loads(metadata)["id"] if metadata else None,
            max(numbers(self.files, "offsets"), default=None),
            max(numbers(self.files, "commits"), default=None),
        )

    def planned(self, batch: int) -> Planned:
        text = self.files.read(f"offsets/{batch}")
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
        fields = json.loads(metadata)
        conf = fields.get("conf", {})
        return Planned(fields.get("batchWatermarkMs", 0), tuple(sources), conf)

    def listed_files(self, source: int, number: int) -> Iterator[Listed]:
        """What a file source has listed under this number of its log."""
        name = f"sources/{source}/{number}"
        # Every tenth has all before it too, and their own files go after a while.
        text = self.files.read(name) or self.files.read(f"{name}.compact") or ""
        for line in text.splitlines()[1:]:
            fields = json.loads(line)
            if fields["batchId"] == number:
                yield Listed(fields["path"], fields["timestamp"])

    def finish(self, batch: int, state_ids: StateIds | None = None) -> None:
        """Write the commit that Spark did not come to; the batch's own watermark is a safe next
        one: never too late, only later."""
        former = self.files.read(f"commits/{batch - 1}") if batch else None
        version = former.splitlines()[0] if former else _VERSION_LINE
        fields = _commit_fields(former) if former else {}
        if state_ids is not None:
            version = _WITH_STATE_IDS if version == _VERSION_LINE else version
            fields["stateUniqueIds"] = state_ids
        elif fields.get("stateUniqueIds"):
            raise LedgerError(
                f"batch {batch} of {self.location} was written and not committed by Spark, and the "
                "ledger does not say which state belongs to it: another version of sparkonce wrote "
                "it, or another program. Start with an empty checkpointLocation and "
                "lostState=empty, and the query goes on from the ledger with empty state"
            )
        fields["nextBatchWatermarkMs"] = self.planned(batch).watermark_ms
        self._write_commit(batch, version, fields)

    def state_ids(self, batch: int) -> StateIds | None:
        """Of the state that Spark goes on from behind this batch; None if it names none."""
        text = self.files.read(f"commits/{batch}")
        ids: StateIds | None = _commit_fields(text).get("stateUniqueIds") if text else None
        return ids

    def set_state_ids(self, batch: int, state_ids: StateIds) -> None:
        """Let Spark go on from this state behind a batch that it has committed."""
        text = self.files.read(f"commits/{batch}")
        assert text is not None, "read before"
        fields = _commit_fields(text) | {"stateUniqueIds": state_ids}
        self._write_commit(batch, text.splitlines()[0], fields)

    def _write_commit(self, batch: int, version: str, fields: Mapping[str, object]) -> None:
        commit = json.dumps(fields, separators=(",", ":"))
        self.files.write(f"commits/{batch}", f"{version}\n{commit}")

    def start_from(self, source: int, offsets: Offsets) -> None:
        """Where a Kafka source of a new checkpoint begins, whatever its startingOffsets are."""
        text = json.dumps(offsets, separators=(",", ":"))
        # The zero byte is there for Spark 2.1 (KafkaSourceInitialOffsetWriter).
        self.files.write(f"sources/{source}/0", f"\0{_VERSION_LINE}\n{text}")

    def begin_behind(self, sources: Sequence[Offsets | str]) -> None:
        """Let a new checkpoint begin where a batch ended that it never saw. Without state only:
        Spark would look for that of the batch."""
        lines = [
            each if isinstance(each, str) else json.dumps(each, separators=(",", ":"))
            for each in sources
        ]
        # The commit first: a batch that is planned and not committed would be run.
        self.files.write("commits/0", f"{_VERSION_LINE}\n{{}}")
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        self.files.write("offsets/0", "\n".join([_VERSION_LINE, metadata, *lines]))

    def name_query(self, query: str) -> None:
        """Give a new checkpoint its query id before Spark does."""
        self.files.write("metadata", json.dumps({"id": query}, separators=(",", ":")))


def _commit_fields(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(text.splitlines()[1])
    return fields
