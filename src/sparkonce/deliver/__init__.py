"""Databases as sinks: rows, batch and source offsets in one transaction of theirs."""

from sparkonce.stream.formats import register

__all__ = ["register"]
