"""Delta Lake as a sink: executors write Parquet, one commit of the table's log decides."""

from sparkonce.deliver.delta.store import target

__all__ = ["target"]
