"""PostgreSQL as a sink: executors stage by COPY, the driver moves and notes in one transaction."""

from sparkonce.deliver.postgres.store import target

__all__ = ["target"]
