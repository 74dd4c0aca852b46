"""What the verifier looks for, and does, in the checkpoint folder of a Spark pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_WHOLE: Final = ("snapshot", "zip")
"""How files end that have all of a version of the state, and not only what has changed."""


def forget_last_commit(checkpoint: Path) -> None:
    """As if Spark had been stopped just before it noted the last batch, of each query that has its
    checkpoint there."""
    for commits in (checkpoint / "commits", *checkpoint.glob("*/commits")):
        if (last := _last(commits)) is not None:
            (commits / str(last)).unlink()
            (commits / f".{last}.crc").unlink(missing_ok=True)


def forget_last_batch(checkpoint: Path) -> None:
    """As if it were a copy that is older than the last batch that was planned."""
    last = _last(checkpoint / "offsets")
    for log in ("offsets", "commits"):
        (checkpoint / log / f"{last}").unlink(missing_ok=True)
        (checkpoint / log / f".{last}.crc").unlink(missing_ok=True)


def has_snapshots(checkpoint: Path) -> bool:
    """Whether all state stores have one of the batch that was planned last."""
    batch = _last(checkpoint / "offsets")
    stores = list((checkpoint / "state").glob("[0-9]*/[0-9]*"))
    return (
        batch is not None and bool(stores) and all(_has_whole(store, batch + 1) for store in stores)
    )


def _has_whole(store: Path, version: int) -> bool:
    """By its version alone, or with an id of the attempt behind it."""
    return any(
        (store / f"{version}.{kind}").exists() or any(store.glob(f"{version}_*.{kind}"))
        for kind in _WHOLE
    )


def _last(log: Path) -> int | None:
    """The number of the newest file of one of Spark's logs."""
    return max((int(each.name) for each in log.glob("*") if each.name.isdigit()), default=None)
