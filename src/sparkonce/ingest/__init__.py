"""Tables as streaming sources: `spark.readStream.format("sparkonce_table")`."""

from sparkonce.ingest.source import TableSource, register

__all__ = ["TableSource", "register"]
