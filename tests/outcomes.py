"""Outcomes of trials that nobody ran, for tests that show or keep them."""

from __future__ import annotations

from typing import Any

from sparkonce.verify.outcome import Defect, Finding, Happening, Outcome, Verdict
from sparkonce.verify.report.book import Book

STORY = (
    Happening(0.4, "life", "driver 0 started"),
    Happening(1.5, "fault", "LoseResponse('EndTxn') hit EndTxn"),
    Happening(2.0, "kill", "driver 0 killed at record"),
    Happening(2.5, "life", "driver 1 started"),
    Happening(4.0, "broker", "broker 2 killed"),
    Happening(6.0, "end", "all is out"),
    Happening(6.5, "reader", "the reader came to the end"),
)


def outcome(**changes: Any) -> Outcome:
    """A trial of exactly_once that went well, but for the changes."""
    values: dict[str, Any] = {
        "number": 1,
        "seed": 8842,
        "pipeline": "payments",
        "guarantee": "exactly_once",
        "family": "network",
        "schedule": ("LoseResponse('EndTxn', nth=2)", "Kill(point='record')"),
        "verdict": Verdict.KEPT,
        "findings": (),
        "records": 4000,
        "duration_s": 7.25,
        "story": STORY,
        "fired": (True, True),
    }
    return Outcome(**values | changes)


def lost(count: int, reader: str = "") -> Finding:
    return Finding(Defect.LOST, count, ("id-17", "id-18"), reader)


def repeated(count: int, reader: str = "") -> Finding:
    return Finding(Defect.REPEATED, count, ("id-7 at 12, 44",), reader)


def book(*outcomes: Outcome) -> Book:
    versions = {"sparkonce": "0.1.0", "kafka": "4.3.0", "spark": "4.2.0", "python": "3.11.9"}
    return Book(20261115, "2026-11-15T09:12:44+00:00", versions, outcomes, 8123.5)
