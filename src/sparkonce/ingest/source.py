"""`sparkonce_table`: what Spark knows the source by, and the schema that it asks for first."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructField, StructType

from sparkonce.errors import ConfigError
from sparkonce.ingest.outbox import outbox_schema
from sparkonce.ingest.reader import TableReader, open_table
from sparkonce.ingest.settings import TableSettings
from sparkonce.ingest.table import Column


class TableSource(DataSource):
    """A table as a stream of its rows."""

    @classmethod
    def name(cls) -> str:
        return "sparkonce_table"

    def schema(self) -> StructType:
        settings = TableSettings.parse(self.options)
        table = open_table(settings)
        try:
            table.check()
            columns = table.columns()
        finally:
            table.close()
        if settings.outbox:
            return outbox_schema(columns)
        return StructType([_field(column) for column in columns])

    def streamReader(self, schema: StructType) -> TableReader:  # noqa: N802
        return TableReader(TableSettings.parse(self.options), schema)


def register(spark: SparkSession) -> None:
    """Make the format `sparkonce_table` known to a session."""
    spark.dataSource.register(TableSource)


def _field(column: Column) -> StructField:
    if column.kind is None:
        raise ConfigError(
            f"column {column.name!r} is of type {column.declared}, for which Spark has none: leave "
            "it out, or choose a type that its values fit into, with .schema('id BIGINT, …')"
        )
    return StructField(column.name, column.kind)
