"""Reports of batches for tests that listen to them."""

from __future__ import annotations

from typing import Any

from sparkonce.stream.report import BatchReport


def report(**changes: Any) -> BatchReport:
    """A batch that went well, but for the changes."""
    values: dict[str, Any] = {
        "pipeline": "payments",
        "query_id": "4a1f",
        "batch": "12",
        "guarantee": "exactly_once",
        "outcome": "committed",
        "started_s": 1000.0,
        "records": 10_000,
        "size_bytes": 9_800_000,
        "dead_letters": 0,
        "lost": 0,
        "producer_id": 4000,
        "epoch": 7,
        "attempts": 1,
        "tasks": 4,
        "write_ms": 130.0,
        "transaction_ms": 4.0,
        "total_ms": 140.0,
        "targets": {"enriched": 9_000, "audit": 1_000},
    }
    return BatchReport(**values | changes)
