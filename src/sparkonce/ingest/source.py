"""`sparkonce_table`: what Spark knows the source by, and the schema that it asks for first."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparkonce.ingest.reader import TableReader, open_table
from sparkonce.ingest.rows import spark_schema
from sparkonce.ingest.settings import TableSettings


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
        return spark_schema(settings, columns)

    def streamReader(self, schema: StructType) -> TableReader:  # noqa: N802
        return TableReader(TableSettings.parse(self.options), schema)


def register(spark: SparkSession) -> None:
    """Make the format `sparkonce_table` known to a session."""
    spark.dataSource.register(TableSource)
