"""An oracle for tables of Delta: their log replayed by hand, their files read by pyarrow.

Knows nothing of delta-rs. It takes tables whose log was never cleaned up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

Action = dict[str, Any]


def actions(root: Path) -> list[list[Action]]:
    """Of each version, in order."""
    files = sorted((root / "_delta_log").glob("*.json"))
    assert [int(file.stem) for file in files] == list(range(len(files)))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def live(root: Path) -> dict[str, Action]:
    """The `add` of each file that the table has now."""
    found: dict[str, Action] = {}
    for version in actions(root):
        for action in version:
            if "remove" in action:
                del found[action["remove"]["path"]]
        for action in version:
            if "add" in action:
                assert action["add"]["path"] not in found
                found[action["add"]["path"]] = action["add"]
    return found


def schema(root: Path) -> list[Action]:
    last = [a["metaData"] for version in actions(root) for a in version if "metaData" in a][-1]
    fields: list[Action] = json.loads(last["schemaString"])["fields"]
    return fields


def rows(root: Path) -> list[dict[str, Any]]:
    if not (root / "_delta_log").exists():
        return []
    names = [field["name"] for field in schema(root)]
    found: list[dict[str, Any]] = []
    for path, add in live(root).items():
        # Without pyarrow's reading of folders as partitions.
        table = pq.ParquetFile(root / unquote(path)).read().to_pylist()
        stats = json.loads(add["stats"])
        assert stats["numRecords"] == len(table)
        for row in table:
            found.append({name: row.get(name) for name in names} | add["partitionValues"])
    return found


def versions(root: Path, app_id: str) -> list[int]:
    """All txnVersions of an application, in the order of the log."""
    return [
        action["txn"]["version"]
        for version in actions(root)
        for action in version
        if action.get("txn", {}).get("appId") == app_id
    ]


def files(root: Path) -> set[str]:
    """Parquet files that are there, whether the table has them or not."""
    return {path.name for path in root.rglob("*.parquet")}
