"""Before a query starts: what is there, what is made, and whether the table takes such rows.

Nothing is made that is there already, so that who may write needs no right to make anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import psycopg

from sparkonce.deliver import sql
from sparkonce.deliver.postgres.connection import explained, transaction
from sparkonce.deliver.postgres.layout import STAGING_SCHEMA, Layout, TableFacts, table_name
from sparkonce.deliver.postgres.stages import Stages
from sparkonce.deliver.postgres.types import staged_type_of, type_of
from sparkonce.errors import ConfigError
from sparkonce.postgresql import Connection

_VERSION_MIN: Final = 150_000
_TEXTS: Final = ("text", "character varying")
_ROUNDED: Final = (
    "numeric",
    "interval",
    "time without time zone",
    "time with time zone",
    "timestamp without time zone",
    "timestamp with time zone",
)
"""Types in which what is written is rounded to what the column declares, as by a cast. (To cast
text to its column's length would cut it, where the column refuses it.)"""


def prepare(connection: Connection, layout: Layout, timeout: str) -> Layout:
    """With what the server knows."""
    if connection.info.server_version < _VERSION_MIN:
        raise ConfigError(
            f"the server is PostgreSQL {connection.info.server_version // 10_000}: 15 or newer "
            "is needed"
        )
    asked = "SELECT current_user, current_setting('server_encoding')"
    user, encoding = connection.execute(asked).fetchone() or ("", "")
    layout = replace(located(connection, layout), user=user, encoding=encoding)
    _check_staging_schema(connection, layout)
    with _refused("the tables could not be created"), transaction(connection, timeout):
        # One at a time: who looks whether a table is there may not be the only one. And all or
        # nothing: where the last check fails, no column was added and no table made.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('sparkonce'))")
        _create(connection, layout)
        _add_columns(connection, layout)
        layout = replace(layout, facts=_facts(connection, layout))
        with _refused(
            f"rows can't be staged in schema {layout.staging_schema!r}",
            f"Grant USAGE and CREATE on it, or name another schema by {STAGING_SCHEMA}",
        ):
            Stages(layout, timeout).create(connection, 0)
        _check_fit(connection, layout)
    return layout


@contextmanager
def _refused(what: str, advice: str = "") -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise ConfigError(
            f"{what}: {explained(error)}" + (f". {advice}" if advice else "")
        ) from error


def located(connection: Connection, layout: Layout) -> Layout:
    """With the schema that the table is in; that it would be made in, if it is not there."""
    return replace(layout, schema=_schema(connection, layout))


def _schema(connection: Connection, layout: Layout) -> str:
    *given, name = table_name(layout.settings.table)
    if len(given) > 1:
        raise ConfigError("dbtable is schema.table; which database is said in the option url")
    if given:
        return given[0]
    found = connection.execute(
        "SELECT coalesce((SELECT relnamespace::regnamespace::text FROM pg_class "
        "WHERE oid = to_regclass(%s)), quote_ident(current_schema()))",
        (sql.quoted(name),),
    ).fetchone()
    if found is None or found[0] is None:
        raise ConfigError("there is no schema to be in: write dbtable as schema.table")
    return sql.table_name(found[0])[0]


def _check_staging_schema(connection: Connection, layout: Layout) -> None:
    name = layout.staging_schema
    found = connection.execute("SELECT to_regnamespace(%s)", (sql.quoted(name),)).fetchone()
    if found is None or found[0] is None:
        raise ConfigError(f"there is no schema {name!r} to stage rows in: create it")


def _create(connection: Connection, layout: Layout) -> None:
    if not _is_there(connection, layout.ledger):
        connection.execute(sql.create_ledger(layout.ledger))
    elif "state" not in _columns(connection, layout.ledger):
        connection.execute(sql.add_to_ledger(layout.ledger))
    if (dead := layout.dead_letters) and not _is_there(connection, dead):
        connection.execute(sql.create_dead_letters(dead))
    if layout.settings.creates and not _is_there(connection, layout.table):
        connection.execute(layout.create_table())


def _is_there(connection: Connection, table: str) -> bool:
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
    return found == (True,)


@dataclass(frozen=True, slots=True)
class _Column:
    declared: str
    plain: str
    """The type without its length."""
    is_text: bool
    """Of some kind or other."""
    collation: str | None
    """Where texts that differ may be equal."""

    def compares(self, staged: str) -> tuple[str, str] | None:
        """What makes of a staged key what the table compares; None where it is that already."""
        if self.collation is not None:
            return "(CAST(", f" AS {self.plain}) COLLATE {self.collation})"
        rounds = self.plain in _ROUNDED and self.declared != self.plain
        wanted = self.declared if rounds else self.plain
        given = staged.replace(", ", ",") if rounds else staged.partition("(")[0]
        if given == wanted or (staged == "text" and self.plain in _TEXTS):
            return None
        return "CAST(", f" AS {wanted})"


def _columns(connection: Connection, table: str) -> dict[str, _Column]:
    found = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type(a.atttypid, -1), "
        "t.typcategory = 'S', CASE WHEN NOT c.collisdeterministic THEN "
        "format('%%s.%%I', c.collnamespace::regnamespace, c.collname) END "
        "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
        "LEFT JOIN pg_collation c ON c.oid = a.attcollation "
        "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped "
        "ORDER BY a.attnum",
        (table,),
    ).fetchall()
    return {name: _Column(*more) for name, *more in found}


def _add_columns(connection: Connection, layout: Layout) -> None:
    there = _columns(connection, layout.table)
    if not there:
        raise ConfigError(
            f"dbtable {layout.settings.table!r} is not there: create it, or let it be created "
            'by .option("createTable", "true")'
        )
    missing = [each for each in layout.columns.table if _spelled(each.name, there, layout) is None]
    if missing and not layout.settings.merges_schema:
        raise ConfigError(
            f"dbtable {layout.settings.table!r} has no column "
            f"{', '.join(each.name for each in missing)}; it has {', '.join(there)}. Rename or "
            "drop the column before writing, or let it be added by "
            '.option("mergeSchema", "true")'
        )
    for each in missing:
        connection.execute(
            f"ALTER TABLE {layout.table} ADD COLUMN {sql.quoted(each.name)} "
            f"{type_of(each.dataType)}"
        )


def _spelled(name: str, there: Iterable[str], layout: Layout) -> str | None:
    """As the table spells it. Names are the same in any case, as to Spark."""
    alike = [each for each in there if each.lower() == name.lower()]
    if name in alike or not alike:
        return name if alike else None
    if len(alike) > 1:
        raise ConfigError(
            f"column {name!r} may be any of {', '.join(alike)} in dbtable "
            f"{layout.settings.table!r}: rename it to the one that is meant"
        )
    return alike[0]


def _facts(connection: Connection, layout: Layout) -> TableFacts:
    there = _columns(connection, layout.table)
    names = {
        name: spelled
        for name in layout.columns.names
        if (spelled := _spelled(name, there, layout)) is not None
    }
    casts, key_casts = {}, {}
    for each in layout.columns.table:
        column, staged = there[names[each.name]], staged_type_of(each.dataType)
        if staged == "text" and not column.is_text:
            casts[each.name] = column.declared
        compares = column.compares(staged)
        if each.name in layout.columns.keys and compares is not None:
            key_casts[each.name] = compares
    found = connection.execute(
        "SELECT row_security_active(%s::regclass::oid)", (layout.table,)
    ).fetchone()
    return TableFacts(
        names,
        casts,
        key_casts,
        nulls_equal=_are_nulls_equal(connection, layout, names),
        has_row_security=found == (True,),
    )


def _are_nulls_equal(connection: Connection, layout: Layout, names: dict[str, str]) -> bool:
    """Asked of the indexes that ON CONFLICT infers from the key columns, and of no others: a
    partial index, or one that has an expression beside them, says nothing about these keys alone.
    Columns after INCLUDE are not compared."""
    found = connection.execute(
        "SELECT coalesce(bool_or(i.indnullsnotdistinct), false), "
        "coalesce(bool_and(i.indimmediate), true) FROM pg_index i WHERE i.indrelid = %s::regclass "
        "AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL "
        "AND ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid "
        # An int2vector counts from zero.
        "AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) ORDER BY 1) = %s::text[]",
        (layout.table, sorted(names[key] for key in layout.columns.keys)),
    ).fetchone()
    are_nulls_equal, are_immediate = found or (False, True)
    if layout.settings.upserts and not are_immediate:
        # EXPLAIN does not look at it; the first row would fail.
        raise ConfigError(
            f"the primary key or unique constraint of {layout.settings.table!r} on keyColumns is "
            "DEFERRABLE, which an upsert can't use: make it NOT DEFERRABLE"
        )
    return bool(are_nulls_equal)


def _check_fit(connection: Connection, layout: Layout) -> None:
    """Ask the server itself whether it would take such rows."""
    move = layout.move_from(layout.stage_name(0), "true")
    advice = "Cast the column, or change the table" + (
        " (keyColumns must be its primary key or unique)" if move.upserts else ""
    )
    with _refused(f"dbtable {layout.settings.table!r} does not take such rows", advice):
        for statement in (move.several(), move.lock(), move.write()):
            if statement is not None:
                connection.execute(f"EXPLAIN {statement}")
