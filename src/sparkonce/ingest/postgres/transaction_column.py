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

# What a function in another language does can't be read here. A trigger with WHEN passes rows over,
# and so does one of some columns (UPDATE OF), which has an effect on inserts alone. What stands in
# comments does nothing.
_FILLERS: Final = """
SELECT c.oid::bigint, quote_ident(nspname) || '.' || quote_ident(relname),
       (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef
        WHERE adrelid = c.oid AND adnum = a.attnum),
       (SELECT coalesce(bit_or(CASE WHEN cardinality(tgattr::int2[]) = 0 THEN tgtype::int
                                    ELSE tgtype::int & ~{update} END), 0) FROM pg_trigger
        JOIN pg_proc AS p ON p.oid = tgfoid JOIN pg_language AS l ON l.oid = prolang
        WHERE tgrelid = c.oid AND tgenabled IN ('O', 'A') AND tgqual IS NULL
        AND tgtype & {when} = {when}
        AND (lanname NOT IN ('plpgsql', 'sql') OR (
          SELECT source ~* {calls} AND source ~* {sets}
          FROM regexp_replace(prosrc, {comment}, ' ', 'g') AS source)))
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
JOIN pg_attribute AS a ON attrelid = c.oid AND attname = {column}
WHERE {tables}
"""
# As PostgreSQL has regular expressions, in which \m and \M begin and end a word.
_COMMENT: Final = r"--[^\n]*|/\*([^*]|\*+[^*/])*\*+/"
_CALLS: Final = r"\m(pg_current_xact_id|txid_current)\s*\("
_SETS: Final = r"\mNEW\s*\.\s*{name}\s*:?=|\mINTO\M[^;]*\mNEW\s*\.\s*{name}\s*(,|;|\mFROM\M)"
_TRIGGER: Final = (
    "CREATE FUNCTION set_txid() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN NEW.{column} := pg_current_xact_id(); RETURN NEW; END'; CREATE TRIGGER set_txid "
    "BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION set_txid()"
)
_WHOLE: Final = "(A trigger with WHEN or UPDATE OF passes rows over, and does not count.)"


def how_to_add(table: str) -> str:
    """Statements for a table that has no such column yet."""
    trigger = _TRIGGER.format(column="txid", table=table)
    return f"ALTER TABLE {table} ADD COLUMN txid xid8 NOT NULL DEFAULT '0'; {trigger}"


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
    written = '"?' + re.escape(column.name.replace('"', '""')) + '"?'
    asked = _FILLERS.format(
        when=_ROW | _BEFORE,
        update=_UPDATE,
        tables=tables,
        column=_literal(column.name),
        calls=_literal(_CALLS),
        sets=_literal(_SETS.format(name=written)),
        comment=_literal(_COMMENT),
    )
    found = ask(asked)
    # A row that comes through a parent has the parent's default.
    parents = {each.parent for each in children.attachments}
    may_come_bare = all(
        default is None or _FILLS.search(default) for oid, _, default, _ in found if oid in parents
    )
    for oid, table, default, events in found:
        advice = "Let a trigger fill it, whoever writes: " + _TRIGGER.format(
            column=column.name, table=table
        )
        is_bare_child = default is None and oid != relation.oid and may_come_bare
        has_default = default is not None and _FILLS.search(default)
        if not (events & _INSERT or has_default or is_bare_child):
            raise ConfigError(
                f"transactionColumn={column.name!r} of {table} is filled by nothing that can be "
                f"seen: its default is {default or 'none'}, and no trigger before INSERT sets it "
                f"to pg_current_xact_id() for every row. {_WHOLE} Rows with another number would "
                f"be lost. {advice}, or "
                f"ALTER TABLE {table} ALTER COLUMN {column.name} SET DEFAULT pg_current_xact_id()"
            )
        if updated and not events & _UPDATE:
            raise ConfigError(
                f"transactionColumn={column.name!r} of {table} is not set when a row is changed, "
                "as updateColumn promises: no trigger before UPDATE sets it to "
                "pg_current_xact_id() for every row, and a change that is committed late would be "
                f"lost. {_WHOLE} {advice}"
            )


def _literal(text: str) -> str:
    return sql.Literal(text).as_string(None)


def not_yet_had(column: Column, place: Place) -> SourceError:
    key = ", ".join(map(str, place))
    return SourceError(
        f"the row {key} names a transaction in {column.name!r} that this server has not had: the "
        "number was written by hand, restored or replicated from another server. It would hold up "
        f"all rows behind it. Correct it (UPDATE … SET {column.name} = pg_current_xact_id()), and "
        "let a trigger fill the column, which writers can't override"
    )
