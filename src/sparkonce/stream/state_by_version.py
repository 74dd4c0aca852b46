"""State store checkpoint format 1: files named by version alone, whoever wrote them.

Nothing keeps an attempt that was given up, or a fenced driver, from writing under the same names.
So the note of an attempt has a hash of each file of its version, and the mark of the note before
it: at every start all files that Spark may read are compared, back to the last snapshot. Those of a
version that others may still write are compared around each batch too: an executor reads them in
the middle of a run, where it takes a partition over from another one. Before the batch, so that the
file is named; and before its decision, as it may have been changed in between.

What a hash can't tell is who wrote the file before it was hashed: `seal` reads what lies there when
all tasks have ended, and a fenced driver may have replaced the file of a task that ended earlier.

Of a version that was given up, a new run removes all files. A second attempt in the same run leaves
the changes: what Spark computes again it writes again, and what it goes on with, since its rows
were shuffled already, it does not.

Snapshots can't be compared: Spark's maintenance writes them when it likes, from memory. One of a
version that was computed once can have one content only. Where a version was given up, a snapshot
may be of either attempt; it is removed whenever it is seen, as Spark does without it. It does not
where column families were made in this version, which changes don't tell: then the commit itself
writes the snapshot, each attempt's over that of the one before, and it stays. It is written once
and no more, so the note has its hash too.

A driver that is fenced would write over its successor's files, so before it computes or removes
anything it asks whether it is still the owner. What it does then was planned before its successor
looked for what was planned, and that one knows which version is in doubt.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Final

from sparkonce.errors import SparkonceError
from sparkonce.stream.checkpoint import CheckpointFolder
from sparkonce.stream.ledger import Entry, LedgerError
from sparkonce.stream.state import StateNotes

FILES: Final = "files"
_FORMER, _GIVEN_UP = "former", "given_up"
_STATE: Final = "state"
_CHANGES: Final = ("delta", "changelog")
"""What a version adds to the one before: of the HDFS-backed provider, and of RocksDB with changelog
checkpointing."""
_WHOLE: Final = ("snapshot", "zip")
_OF_ROCKSDB: Final = ("SSTs", "logs")
"""What stands beside its versions."""


class StateByVersion:
    is_shared = True

    def __init__(self, folder: CheckpointFolder, notes: StateNotes, *, kept: int) -> None:
        """Spark keeps `kept` versions, and all that these are built on."""
        self._folder = folder
        self._notes = notes
        self._kept = kept
        self._given_up: set[int] = set()
        self._doubtful: dict[str, str] = {}
        """The files of versions that were given up once and sealed since, with their hashes."""
        self._places: list[str] | None = None

    def prepare(self, batch: int, *, is_first: bool) -> None:
        if not is_first:
            self._given_up.add(batch + 1)
        self._drop_doubtful()
        self._check_doubtful(batch)

    def seal(self, batch: int, former: str | None) -> str:
        version = batch + 1
        if former is not None and not self._given_up:
            self._given_up = set(self._notes.read(former).get(_GIVEN_UP, ()))
        self._given_up = {each for each in self._given_up if each > version - self._kept}
        self._drop_doubtful()
        self._check_doubtful(batch)
        places = self._where()
        files: dict[str, str] = {}
        for place in places:
            written = dict(self._hashed(place, version))
            if not written:
                raise SparkonceError(
                    f"{self._folder.location}/{place} has no version {version} of the state: a "
                    f"part of batch {batch} was not computed"
                )
            files |= written
        self._places = places  # all of them: each has this version
        # What a former attempt at this batch sealed is written over.
        self._doubtful = {
            name: digest for name, digest in self._doubtful.items() if _version(name) != version
        }
        self._remember_doubtful(files)
        note = {FILES: files, _FORMER: former, _GIVEN_UP: sorted(self._given_up)}
        return self._notes.write(batch, note)

    def verify(self, entry: Entry | None) -> None:
        checkpoint = self._folder.read()
        if checkpoint.planned is not None and checkpoint.planned != checkpoint.committed:
            self._remove(checkpoint.planned + 1)
        # Where Spark has gone on, it was under a guarantee that says nothing of state.
        if entry is None or entry.state is None or entry.batch != checkpoint.committed:
            return
        self._given_up |= set(self._notes.read(entry.state).get(_GIVEN_UP, ()))
        self._drop_doubtful()
        self._compare(entry.state, entry.batch + 1)

    def _remove(self, version: int) -> None:
        """A new run computes all of it."""
        self._given_up.add(version)
        for place in self._where():
            for kind in (*_CHANGES, *_WHOLE):
                self._folder.files.delete(f"{place}/{version}.{kind}")

    def _compare(self, mark: str, version: int) -> None:
        """All files that Spark may read: from the visible version back to the last snapshot."""
        oldest = {place: self._last_snapshot(place, version) for place in self._where()}
        wanted: str | None = mark
        while wanted is not None and (wanted == mark or self._notes.has(wanted)):
            note = self._notes.read(wanted)
            read = {
                name: digest
                for name, digest in note.get(FILES, {}).items()
                if _version(name) >= oldest.get(_place(name), 0)
            }
            if not read:
                return
            for name, digest in read.items():
                self._check(name, digest)
            self._remember_doubtful(read)
            wanted = note.get(_FORMER)

    def _remember_doubtful(self, files: Mapping[str, str]) -> None:
        known = {**self._doubtful, **files}
        self._doubtful = {
            name: digest for name, digest in known.items() if _version(name) in self._given_up
        }

    def _check_doubtful(self, visible: int) -> None:
        """Whether the files in doubt are what was sealed, as far as Spark may read them to go on
        from the visible version."""
        oldest = {
            place: self._last_snapshot(place, visible) for place in map(_place, self._doubtful)
        }
        for name, digest in self._doubtful.items():
            if oldest[_place(name)] <= _version(name) <= visible:
                self._check(name, digest)

    def _check(self, name: str, digest: str) -> None:
        found = self._folder.files.digest(name)
        if found == digest:
            return
        how = "is missing" if found is None else "is not what the visible attempt wrote"
        raise LedgerError(
            f"{self._folder.location}/{name} {how}: its batch is decided, and "
            "another driver with this checkpoint has changed it, or somebody else. Restore the "
            "checkpoint from a copy that is older than that; or start with an empty "
            "checkpointLocation and lostState=empty, and the query goes on from the ledger with "
            "empty state. It can't happen with RocksDB and new checkpoints: docs/spark.md, State"
        )

    def _last_snapshot(self, place: str, until: int) -> int:
        """Spark reads it, and the changes since. The changes of its own version count too: who
        writes a snapshot over another's has written these before."""
        names = (name.partition(".") for name in self._folder.files.names(place))
        versions = [int(number) for number, _, kind in names if number.isdigit() and kind in _WHOLE]
        return max((each for each in versions if each <= until), default=0)

    def _drop_doubtful(self) -> None:
        if not self._given_up:
            return
        for place in self._where():
            names = set(self._folder.files.names(place))
            for version in sorted(self._given_up):
                if names.isdisjoint(f"{version}.{kind}" for kind in _CHANGES):
                    continue
                for name in names.intersection(f"{version}.{kind}" for kind in _WHOLE):
                    if not self._has_new_families(place, version, names):
                        self._folder.files.delete(f"{place}/{name}")

    def _has_new_families(self, place: str, version: int, names: set[str]) -> bool:
        """Whether a snapshot of RocksDB has column families that the one before has not. Where that
        one was cleared away nobody knows, and what is in doubt is not read."""
        zips = [int(each[:-4]) for each in names if each.endswith(".zip") and each[:-4].isdigit()]
        before = max((each for each in zips if each < version), default=0)
        if before == 0 and version > 1:
            return False
        return not self._families(place, version) <= self._families(place, before)

    def _families(self, place: str, version: int) -> set[str]:
        packed = self._folder.files.read_bytes(f"{place}/{version}.zip")
        if packed is None:
            return set()
        with zipfile.ZipFile(io.BytesIO(packed)) as snapshot:
            _, _, fields = snapshot.read("metadata").decode().partition("\n")
        return set(json.loads(fields).get("columnFamilyMapping") or ())

    def _hashed(self, place: str, version: int) -> Iterator[tuple[str, str]]:
        """What the version was written as: its changes, or all of it. Both where a snapshot of a
        version that was given up stays: it is read. One that does not stay has no hash, as it may
        come at any moment, also right before this, and goes when it is seen."""
        for kinds in (_CHANGES, _WHOLE):
            names = [f"{place}/{version}.{kind}" for kind in kinds]
            found = [
                (name, digest) for name in names if (digest := self._folder.files.digest(name))
            ]
            yield from found
            if found and not self._has_snapshot_that_stays(place, version):
                return

    def _has_snapshot_that_stays(self, place: str, version: int) -> bool:
        """Beside its changes."""
        names = set(self._folder.files.names(place))
        return version in self._given_up and self._has_new_families(place, version, names)

    def _where(self) -> list[str]:
        """The folders of all state stores, as far as there are any."""
        return self._found_places() if self._places is None else self._places

    def _found_places(self) -> list[str]:
        """By operator, partition and, if there are several, name. Each is made by the first task
        that writes there."""
        files = self._folder.files
        found = []
        for operator in files.folders(_STATE):
            for partition in files.folders(f"{_STATE}/{operator}"):
                if not partition.isdigit():
                    continue
                place = f"{_STATE}/{operator}/{partition}"
                named = [each for each in files.folders(place) if not each.startswith("_")]
                stores = [each for each in named if each not in _OF_ROCKSDB]
                found += [f"{place}/{each}" for each in stores] or [place]
        return found


def _place(name: str) -> str:
    return name.rpartition("/")[0]


def _version(name: str) -> int:
    return int(name.rpartition("/")[2].partition(".")[0])
