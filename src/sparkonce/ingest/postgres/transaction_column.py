"""The column that holds the number of the transaction that wrote a row: is it really filled?

Rows are told by these numbers alone. One without a number, or with one that is too small, would
count as read when it was never read. So a column that may be null is refused, and one that nothing
in the database fills; and a row with a number that the server has not come to yet.
"""

from __future__ import annotations

import re
from typing import Final

from psycopg import sql

from sparkonce.errors import ConfigError
from sparkonce.ingest.position import Place
from sparkonce.ingest.postgres.catalog import Relation
from sparkonce.ingest.postgres.children import Ask, Children
from sparkonce.ingest.postgres.members import one_of
from sparkonce.ingest.table import Column, SourceError

_TYPES: Final = ("xid8", "bigint", "numeric")
_FILLS: Final = re.compile(r"\b(pg_current_xact_id|txid_current)\(\)")
_ROW, _BEFORE, _INSERT, _UPDATE = 1, 2, 4, 16  # bits of pg_trigger.tgtype

# What a function in another language does can't be read here.
_FILLERS: Final = """
SELECT c.oid::bigint, quote_ident(nspname) || '.' || quote_ident(relname),
       (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef
        WHERE adrelid = c.oid AND adnum = a.attnum),
       (SELECT coalesce(bit_or(tgtype::int), 0) FROM pg_trigger
        JOIN pg_proc AS p ON p.oid = tgfoid JOIN pg_language AS l ON l.oid = prolang
        WHERE tgrelid = c.oid AND tgenabled IN ('O', 'A') AND tgtype & {when} = {when}
        AND (lanname NOT IN ('plpgsql', 'sql') OR prosrc ~ '(pg_current_xact_id|txid_current)'))
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
JOIN pg_attribute AS a ON attrelid = c.oid AND attname = {column}
WHERE {tables}
"""
_ADVICE: Final = (
    "Let a trigger fill it, whoever writes: CREATE FUNCTION set_txid() RETURNS trigger LANGUAGE "
    "plpgsql AS 'BEGIN NEW.{column} := pg_current_xact_id(); RETURN NEW; END'; CREATE TRIGGER "
    "set_txid BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION set_txid()"
)


def check_declared(column: Column) -> None:
    what = f"transactionColumn={column.name!r}"
    if column.declared not in _TYPES:
        raise ConfigError(
            f"{what} is of type {column.declared}: it must be xid8 (or bigint), filled by DEFAULT "
            "pg_current_xact_id()"
        )
    if column.nullable:
        raise ConfigError(
            f"{what} may be null, and a row without a number would be taken for an old one and "
            f"lost: UPDATE … SET {column.name} = '0' WHERE {column.name} IS NULL, for rows that "
            f"are there, then ALTER TABLE … ALTER COLUMN {column.name} SET NOT NULL"
        )


def check_filled(
    ask: Ask, relation: Relation, children: Children, column: Column, *, updated: bool
) -> None:
    """`updated`: rows that are changed are to come again, so updates must fill it too."""
    tables = one_of((relation.oid, *sorted(children.xids))).replace("tableoid", "c.oid")
    name = sql.Literal(column.name).as_string(None)
    found = ask(_FILLERS.format(when=_ROW | _BEFORE, column=name, tables=tables))
    for oid, table, default, events in found:
        advice = _ADVICE.format(column=column.name, table=table)
        if not _fills_inserts(default, events, is_child=oid != relation.oid):
            raise ConfigError(
                f"transactionColumn={column.name!r} of {table} is filled by nothing that can be "
                f"seen: its default is {default or 'none'}, and no trigger before INSERT calls "
                f"pg_current_xact_id(). Rows with another number would be lost. {advice}, or "
                f"ALTER TABLE {table} ALTER COLUMN {column.name} SET DEFAULT pg_current_xact_id()"
            )
        if updated and not events & _UPDATE:
            raise ConfigError(
                f"transactionColumn={column.name!r} of {table} is not set when a row is changed, "
                "as updateColumn promises: no trigger before UPDATE calls pg_current_xact_id(), "
                f"and a change that is committed late would be lost. {advice}"
            )


def _fills_inserts(default: str | None, events: int, *, is_child: bool) -> bool:
    if events & _INSERT or (default and _FILLS.search(default)):
        return True
    # Rows come through the parent, with its default; directly they must bring a number along.
    return is_child and default is None


def not_yet_had(column: Column, place: Place) -> SourceError:
    key = ", ".join(map(str, place))
    return SourceError(
        f"the row {key} names a transaction in {column.name!r} that this server has not had: the "
        "number was written by hand, restored or replicated from another server. It would hold up "
        f"all rows behind it. Correct it (UPDATE … SET {column.name} = pg_current_xact_id()), and "
        "let a trigger fill the column, which writers can't override"
    )
