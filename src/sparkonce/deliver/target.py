"""What every kind of table has in common before it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

from sparkonce.deliver.columns import Columns
from sparkonce.deliver.lag import Lag
from sparkonce.deliver.settings import TableSettings
from sparkonce.deliver.sink import TableSink
from sparkonce.deliver.store import Store
from sparkonce.stream.sources import Reading
from sparkonce.stream.steps import Observer


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table as a place to write to; a kind of database says which types it has and how to open
    it."""

    settings: TableSettings
    type_of: Callable[[DataType], str]
    """The database's word for a type of Spark's; ConfigError where it has none."""
    open_store: Callable[[TableSettings, Columns], Store]
    nested_as_json: bool = False

    def open(
        self, frame: DataFrame, reading: Reading | None, observe: Observer | None
    ) -> TableSink:
        columns = self._columns(frame.schema)
        store = self.open_store(self.settings, columns)
        lag = Lag.of(self.settings.group, reading.sources) if reading else None
        return TableSink(self.settings, columns, store, lag, observe, self._former(columns))

    def _former(self, columns: Columns) -> Callable[[], Store] | None:
        """Opens the ledger under the name that this run of a batch job had in version 0.1.0."""
        former = self.settings.former_group
        if former is None:
            return None
        settings = replace(self.settings, pipeline=former, run_id=None)
        return lambda: self.open_store(settings, columns)

    def _columns(self, schema: StructType) -> Columns:
        return Columns.plan(
            schema, self.settings, type_of=self.type_of, nested_as_json=self.nested_as_json
        )
