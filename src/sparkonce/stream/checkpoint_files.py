"""The files of a checkpoint: a local folder is read as files, any other through Hadoop.

Names are relative to the checkpoint, with slashes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from sparkonce.stream.ledger import LedgerError


class Files(Protocol):
    @property
    def root(self) -> str:
        """The folder itself: the same for all spellings of its location."""

    def read(self, name: str) -> str | None: ...

    def read_bytes(self, name: str) -> bytes | None: ...

    def write(self, name: str, text: str) -> None:
        """Under another name first: a file that is there is whole."""

    def names(self, folder: str) -> list[str]:
        """Of files and folders in it; none if it isn't there."""

    def folders(self, folder: str) -> list[str]:
        """Of the folders in it."""

    def delete(self, name: str) -> None:
        """If it is there."""

    def digest(self, name: str) -> str | None:
        """SHA-256 of what the file has; None if it isn't there."""


def numbers(files: Files, folder: str) -> list[int]:
    """Spark's logs name their files by batch."""
    return [int(name) for name in files.names(folder) if name.isdigit()]


def files_at(spark: SparkSession, location: str) -> Files:
    """Where Spark will look: Hadoop says what a location means, relative ones and odd ones too."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    url = system.makeQualified(path).toUri()
    if url.getScheme() == "file":
        return LocalFiles(Path(url.getPath()))
    return HadoopFiles(spark, location)


class LocalFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def root(self) -> str:
        return os.path.realpath(self._folder)

    def read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def read_bytes(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A checksum of an earlier file of this name would make Hadoop refuse the new one.
        _checksum(path).unlink(missing_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._folder / folder)  # noqa: PTH208 - names are wanted
        except FileNotFoundError:
            return []

    def folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._folder / folder) as found:
                return [each.name for each in found if each.is_dir()]
        except FileNotFoundError:
            return []

    def delete(self, name: str) -> None:
        path = self._folder / name
        path.unlink(missing_ok=True)
        _checksum(path).unlink(missing_ok=True)

    def digest(self, name: str) -> str | None:
        try:
            with (self._folder / name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None


class HadoopFiles:
    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils
        self._digests = jvm.org.apache.commons.codec.digest.DigestUtils
        self._root = self._path(location)
        self._system = self._root.getFileSystem(spark._jsc.hadoopConfiguration())

    @property
    def root(self) -> str:
        return str(self._system.makeQualified(self._root).toString())

    def read(self, name: str) -> str | None:
        stream = self._open(name)
        if stream is None:
            return None
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def read_bytes(self, name: str) -> bytes | None:
        stream = self._open(name)
        if stream is None:
            return None
        try:
            return bytes(self._io.toByteArray(stream))
        finally:
            stream.close()

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

    def names(self, folder: str) -> list[str]:
        return [status.getPath().getName() for status in self._listed(folder)]

    def folders(self, folder: str) -> list[str]:
        listed = self._listed(folder)
        return [status.getPath().getName() for status in listed if status.isDirectory()]

    def delete(self, name: str) -> None:
        self._system.delete(self._path(self._root, name), False)

    def digest(self, name: str) -> str | None:
        stream = self._open(name)
        if stream is None:
            return None
        try:
            return str(self._digests.sha256Hex(stream))
        finally:
            stream.close()

    def _open(self, name: str) -> Any:
        path = self._path(self._root, name)
        return self._system.open(path) if self._system.exists(path) else None

    def _listed(self, folder: str) -> list[Any]:
        path = self._path(self._root, folder)
        return list(self._system.listStatus(path)) if self._system.exists(path) else []


def _checksum(path: Path) -> Path:
    """Hadoop's own, beside the file."""
    return path.with_name(f".{path.name}.crc")
