"""Jars by name: Kafka's broker and tools, Spark's Kafka connector, PostgreSQL's driver for Java.

Stands between Java and whatever runs on it. Ivy, which PySpark carries among its own jars,
resolves and downloads; the files are then checked against `jars.lock` and moved into the cache in
one step. After that a look at sizes and times is enough: no network, no hashing.

After a version here was changed, `python -m sparkonce.local --lock` writes `jars.lock` anew from
what Ivy resolves.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sparkonce.errors import LocalError
from sparkonce.local.cache import cache_dir, exclusive
from sparkonce.local.ivy import Coordinate, retrieve

KAFKA_VERSION = "4.2.1"
SPARK_VERSION = "4.2.0"

LOCK_FILE = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that are put on one class path together."""

    name: str
    coordinates: tuple[Coordinate, ...]


BROKER = JarSet(
    "broker",
    (
        Coordinate("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, transitive=True),
        Coordinate("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
        # Kafka logs through slf4j 1.7 and leaves the choice of a back end to its distribution.
        Coordinate("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
)

CONNECTOR = JarSet(
    "connector",
    (
        # Not transitive: everything else that the connector wants is among PySpark's own jars.
        Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_VERSION),
        # The token provider of 4.2.0 isn't on every mirror; 4.0.0's works beside the connector.
        Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        Coordinate("org.apache.kafka", "kafka-clients", "3.9.2"),
        Coordinate("org.apache.commons", "commons-pool2", "2.13.1"),
    ),
)

# Spark's own JDBC sink needs it, and nothing of ours does: a benchmark compares the two.
JDBC = JarSet("jdbc", (Coordinate("org.postgresql", "postgresql", "42.7.13"),))

ALL_SETS = (BROKER, CONNECTOR)
"""What everybody needs, fetched ahead of time; JDBC comes when it is asked for."""


def broker_jars() -> list[Path]:
    """Kafka's broker and command-line tools, fetched on first use."""
    return resolve(BROKER)


def connector_jars() -> list[Path]:
    """Spark's Kafka source and sink, for `spark.jars`, fetched on first use."""
    return resolve(CONNECTOR)


def jdbc_jars() -> list[Path]:
    """PostgreSQL's driver for Spark's JDBC source and sink, for `spark.jars`, fetched likewise."""
    return resolve(JDBC)


def resolve(jar_set: JarSet) -> list[Path]:
    """The set's files in the cache; downloaded and checked first if they aren't there yet."""
    expected = _locked_sums(jar_set)
    folder = cache_dir() / "jars" / f"{jar_set.name}-{_fingerprint(expected)}"
    if not _is_untouched(folder, expected):
        with exclusive("fetching"):
            if not _is_untouched(folder, expected):  # somebody else may just have fetched it
                _fetch(jar_set, expected, folder)
    return [folder / name for name in sorted(expected)]


def _fetch(jar_set: JarSet, expected: dict[str, str], folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as scratch:
        draft = Path(scratch) / "jars"
        retrieve(jar_set.name, jar_set.coordinates, draft, expected_count=len(expected))
        _check_sums(jar_set, expected, draft)
        (draft / "stamp.json").write_text(json.dumps(_stamp(draft, expected)))
        if folder.exists():  # it was tampered with, or a stamp was lost: replace it as a whole
            shutil.rmtree(folder)
        draft.rename(folder)


def _check_sums(jar_set: JarSet, expected: dict[str, str], folder: Path) -> None:
    found = {path.name: _sha256(path) for path in folder.glob("*.jar")}
    missing = sorted(expected.keys() - found.keys())
    surplus = sorted(found.keys() - expected.keys())
    if missing or surplus:
        raise LocalError(
            f"The jars of the set '{jar_set.name}' aren't those that {LOCK_FILE.name} lists "
            f"(missing: {missing}; not listed: {surplus}). Nothing was kept. If a version was "
            "changed on purpose, write the list anew: python -m sparkonce.local --lock"
        )
    for name, wanted in expected.items():
        if found[name] != wanted:
            raise LocalError(
                f"The downloaded {name} isn't the file this version of sparkonce was tested with: "
                f"its SHA-256 is {found[name]}, {LOCK_FILE.name} says {wanted}. It was thrown "
                f"away. Try again; if it stays so, delete {cache_dir() / 'ivy'} or ask whoever "
                "runs your package mirror."
            )


def _is_untouched(folder: Path, expected: dict[str, str]) -> bool:
    stamp_path = folder / "stamp.json"
    if not stamp_path.exists():
        return False
    try:
        return bool(json.loads(stamp_path.read_text()) == _stamp(folder, expected))
    except (FileNotFoundError, ValueError):  # a jar was deleted, or the stamp is damaged
        return False


def _stamp(folder: Path, names: dict[str, str]) -> dict[str, list[int]]:
    stats = {name: (folder / name).stat() for name in sorted(names)}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _locked_sums(jar_set: JarSet) -> dict[str, str]:
    lines = [line.split() for line in LOCK_FILE.read_text().splitlines() if line[:1] not in "#"]
    return {name: sha256 for set_name, name, sha256 in lines if set_name == jar_set.name}


def _fingerprint(sums: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()[:12]


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_lock() -> None:
    """Resolve every set without checking and write down what came."""
    lines = [
        "# Every jar that sparkonce starts, by set: set, file name, SHA-256.",
        "# Written by: python -m sparkonce.local --lock",
    ]
    for jar_set in (*ALL_SETS, JDBC):
        with tempfile.TemporaryDirectory() as scratch:
            retrieve(jar_set.name, jar_set.coordinates, Path(scratch), expected_count=None)
            lines += [
                f"{jar_set.name} {path.name} {_sha256(path)}"
                for path in sorted(Path(scratch).glob("*.jar"))
            ]
    LOCK_FILE.write_text("\n".join(lines) + "\n")
