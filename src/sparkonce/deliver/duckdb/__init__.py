"""DuckDB as a sink, the embedded default: executors write Parquet, the driver loads and notes."""

from sparkonce.deliver.duckdb.store import target

__all__ = ["target"]
