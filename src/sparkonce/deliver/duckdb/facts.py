"""What DuckDB's catalogue has of a table: its types, and what it asks of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import duckdb

from sparkonce.deliver.columns import Columns
from sparkonce.deliver.duckdb.file import Opened
from sparkonce.deliver.duckdb.types import type_of
from sparkonce.deliver.sql import quoted, table_name

_HERE: Final = {
    1: "database_name = current_database() AND schema_name = current_schema()",
    2: "(database_name = current_database() AND lower(schema_name) = lower($first) "
    "OR lower(database_name) = lower($first) AND schema_name = 'main')",
    3: "lower(database_name) = lower($first) AND lower(schema_name) = lower($second)",
}


@dataclass(frozen=True, slots=True)
class Constraint:
    columns: tuple[str, ...]
    expression: str = ""
    table: str = ""
    """That a foreign key refers to; it is in the same schema."""
    referred: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableFacts:
    name: str
    schema: tuple[str, ...] = ()
    """As far as `name` says it."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Of the columns that are written."""
    required: tuple[str, ...] = ()
    uniques: tuple[Constraint, ...] = ()
    checks: tuple[Constraint, ...] = ()
    references: tuple[Constraint, ...] = ()

    @classmethod
    def read(cls, connection: Opened, table: str, columns: Columns) -> TableFacts:
        *schema, name = table_name(table)
        where = f"lower(table_name) = lower($name) AND {_HERE[len(schema) + 1]}"
        given = {"name": name, **dict(zip(("first", "second"), schema, strict=False))}
        found = connection.execute(
            f"SELECT column_name, data_type FROM duckdb_columns() WHERE {where}", given
        ).fetchall()
        spelled = {each.lower(): each for each in columns.names}
        types = {
            spelled[column.lower()]: kind for column, kind in found if column.lower() in spelled
        }
        kinds: dict[str, list[Constraint]] = {}
        constraints = connection.execute(
            "SELECT constraint_type, constraint_column_names, coalesce(expression, ''), "
            "coalesce(referenced_table, ''), coalesce(referenced_column_names, []) "
            f"FROM duckdb_constraints() WHERE {where}",
            given,
        )
        for kind, names, expression, referred_table, referred in constraints.fetchall():
            # One on a column that has its default in all rows is not for us to judge.
            if all(each.lower() in spelled for each in names):
                own = tuple(spelled[each.lower()] for each in names)
                made = Constraint(own, expression, referred_table, tuple(referred))
                kinds.setdefault(kind, []).append(made)
        indexes = connection.execute(
            f"SELECT CAST(expressions AS varchar[]) FROM duckdb_indexes() "
            f"WHERE is_unique AND NOT is_primary AND {where}",
            given,
        )
        for (parts,) in indexes.fetchall():
            named = [table_name(part) for part in parts]
            # What is computed is not for us to judge either.
            if all(len(each) == 1 and each[0].lower() in spelled for each in named):
                made = Constraint(tuple(spelled[each[0].lower()] for each in named))
                kinds.setdefault("UNIQUE", []).append(made)
        return cls(
            _full((*schema, name)),
            tuple(schema),
            types,
            tuple(name for each in kinds.get("NOT NULL", ()) for name in each.columns),
            (*kinds.get("PRIMARY KEY", ()), *kinds.get("UNIQUE", ())),
            tuple(kinds.get("CHECK", ())),
            tuple(kinds.get("FOREIGN KEY", ())),
        )

    def beside(self, table: str) -> str:
        """Another one of the same schema: one of the same name may be in the main schema."""
        return _full((*self.schema, table))

    def cast(self, name: str, column: str) -> str:
        """Null where it can't be."""
        kind = self.types.get(name)
        return f"TRY_CAST({column} AS {kind})" if kind else column

    def key_casts(self, columns: Columns) -> dict[str, tuple[str, str]]:
        """Of keys that are of another type in the table."""
        return {
            name: ("CAST(", f" AS {self.types[name]})")
            for name in columns.keys
            if name in self.types and self.types[name] != type_of(columns.type_of(name))
        }


def _full(parts: Iterable[str]) -> str:
    return ".".join(map(quoted, parts))


REFUSALS = (duckdb.ConstraintException, duckdb.ConversionException, duckdb.OutOfRangeException)
