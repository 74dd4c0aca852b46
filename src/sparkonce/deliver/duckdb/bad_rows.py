"""Rows that the table does not take: found, and put aside with the others' commit.

All at once first, which is the rule. DuckDB gives up a transaction in which a row was refused, and
does not say which row it was. So all rows are looked at for what the catalogue asks of them, by one
statement for each constraint; what is refused nevertheless is tried out in transactions that are
rolled back, as many rows together as were good before the last bad one, and by halving.

Where a key's newest row is bad, the one before it is the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import duckdb

from sparkonce.deliver.columns import DELETED, SEQUENCE
from sparkonce.deliver.duckdb.facts import REFUSALS, Constraint, TableFacts
from sparkonce.deliver.duckdb.file import Opened
from sparkonce.deliver.duckdb.statements import statements
from sparkonce.deliver.sql import Move, listed, literal, quoted

_ROWS: Final = "temp.main.sparkonce_rows"
_BAD: Final = "temp.main.sparkonce_bad"
_CHOSEN: Final = "temp.main.sparkonce_chosen"
# Names that no column of the user's may have.
_ID: Final = "_sparkonce_id"
_REASON: Final = "_sparkonce_reason"
_SECOND: Final = "_sparkonce_second"
"""Bad beside another row of the batch, and only for as long as that one is good."""
_RANK: Final = "_sparkonce_rank"
_FIRST: Final = "_sparkonce_first"
_FIRST_RANK: Final = "_sparkonce_first_rank"
_NUMBER: Final = "_sparkonce_number"
_ROWS_FETCHED: Final = 10_000


def set_aside(connection: Opened, move: Move, facts: TableFacts) -> Move:
    """Outside of a transaction: the same move without rows that are refused, which `refused`
    then tells."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE sparkonce_rows AS "
        f"SELECT row_number() OVER () AS {_ID}, * FROM {move.good} AS g"
    )
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE sparkonce_bad "
        f"({_ID} bigint, {_REASON} varchar, {_SECOND} boolean)"
    )
    good = replace(move, ready=_CHOSEN)
    _judge(connection, _alone(move, facts))
    while True:
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE sparkonce_chosen AS SELECT *, row_number() OVER "
            f"(ORDER BY {_ID}) AS {_NUMBER} FROM ({_ranked(move, facts)}) WHERE {_ID} = {_FIRST}"
        )
        # Each time, others are chosen before more is said: who is second to a bad row is not bad.
        if _judge(connection, _beside_the_table(move, facts)):
            continue
        if _judge_among_themselves(connection, move, facts):
            continue
        if _reason(connection, good) is None:
            return good
        tried = list(_tried(connection, move)) or list(_behind_others(connection, move))
        if not tried:
            return good  # that it is refused is told as it is written
        connection.execute(f"DELETE FROM {_BAD} WHERE {_SECOND}")  # to one of these, perhaps
        for number, reason in tried:
            connection.execute(
                f"INSERT INTO {_BAD} SELECT {_ID}, ?, false FROM {_CHOSEN} WHERE {_NUMBER} = ?",
                [reason, number],
            )


def _judge(connection: Opened, judgements: Iterator[str]) -> int:
    """How many are bad; one that can't be asked for so is found by trying."""
    found = 0
    for judgement in judgements:
        with suppress(duckdb.Error):
            told = (
                f"SELECT *, false FROM ({judgement}) WHERE {_ID} NOT IN (SELECT {_ID} FROM {_BAD})"
            )
            counted = connection.execute(f"INSERT INTO {_BAD} {told}").fetchone()
            found += counted[0] if counted else 0
    return found


def _judge_among_themselves(connection: Opened, move: Move, facts: TableFacts) -> int:
    """How many of those that were chosen have what is unique to one before them that stays. One
    pass over those that share such a value with others: who is second to one that goes may stay,
    and so on."""
    uniques = list(_uniques(move, facts))
    seconds: list[list[int]] = [[] for _ in uniques]
    taken: list[set[int]] = [set() for _ in uniques]
    if not uniques:
        return 0
    try:
        shared = connection.execute(_shared(uniques, move, facts))
        while rows := shared.fetchmany(_ROWS_FETCHED):
            for number, *groups in rows:
                held = list(zip(groups, taken, seconds, strict=True))
                second = next((aside for group, there, aside in held if group in there), None)
                if second is not None:
                    second.append(number)
                    continue
                for group, there, _ in held:
                    if group is not None:
                        there.add(group)
    except duckdb.Error:
        return 0
    for unique, numbers in zip(uniques, seconds, strict=True):
        for first in range(0, len(numbers), _ROWS_FETCHED):
            connection.execute(
                f"INSERT INTO {_BAD} SELECT {_ID}, {_duplicate(unique)}, true FROM {_CHOSEN} "
                f"WHERE {_ID} IN (SELECT unnest(?))",
                [numbers[first : first + _ROWS_FETCHED]],
            )
    return sum(map(len, seconds))


def refused(move: Move, facts: TableFacts, pipeline: str, dead: str) -> str:
    """Into the dead letters: those that no good row of their key comes after."""
    row = f"CAST(to_json(struct_pack({listed(move.columns.names)})) AS varchar)"
    return (
        f'INSERT INTO {dead} (pipeline, reason, "row") '
        f"SELECT {literal(pipeline)}, b.{_REASON}, r._sparkonce_row FROM "
        f"(SELECT {_ID}, {row} AS _sparkonce_row FROM ({_ranked(move, facts)}) "
        f"WHERE {_FIRST} IS NULL OR {_RANK} < {_FIRST_RANK}) AS r JOIN {_BAD} AS b USING ({_ID})"
    )


def _ranked(move: Move, facts: TableFacts) -> str:
    """All rows, each with the one that is its key's newest of those that are not bad."""
    is_good = f"{_ID} NOT IN (SELECT {_ID} FROM {_BAD})"
    if not move.upserts or SEQUENCE not in move.columns.beside:
        return (
            f"SELECT *, CASE WHEN {is_good} THEN {_ID} END AS {_FIRST}, 0 AS {_RANK}, "
            f"0 AS {_FIRST_RANK} FROM {_ROWS}"
        )
    keys = [facts.cast(name, quoted(name)) for name in move.columns.keys]
    # Null equals no key, and what can't be a key equals none either.
    alone = f"CASE WHEN {' OR '.join(f'{key} IS NULL' for key in keys)} THEN {_ID} END"
    over = f"PARTITION BY {', '.join([*keys, alone])}"
    order = f"ORDER BY {SEQUENCE} DESC NULLS LAST, {_ID}"
    return (
        f"SELECT *, min({_RANK}) FILTER ({is_good}) OVER ({over}) AS {_FIRST_RANK}, "
        f"arg_min({_ID}, {_RANK}) FILTER ({is_good}) OVER ({over}) AS {_FIRST} "
        f"FROM (SELECT *, row_number() OVER ({over} {order}) AS {_RANK} FROM {_ROWS})"
    )


# -- judged by the catalogue ----------------------------------------------------------------------


def _alone(move: Move, facts: TableFacts) -> Iterator[str]:
    """Places and reasons of rows that are bad whatever others there are."""
    kept = f"NOT {DELETED}" if DELETED in move.columns.beside else "true"
    for name, kind in facts.types.items():
        column, told = quoted(name), literal(f"column {name!r}: can't be cast to {kind}: ")
        where = "true" if name in move.columns.keys else kept
        yield (
            f"SELECT {_ID}, {told} || left(CAST({column} AS varchar), 100) FROM {_ROWS} "
            f"WHERE {where} AND {column} IS NOT NULL AND {facts.cast(name, column)} IS NULL"
        )
    rows = _as_in_the_table(move, facts, _ROWS)
    for name in facts.required:
        told = literal(f"NOT NULL constraint failed: column {name!r} is null")
        yield f"SELECT {_ID}, {told} FROM {rows} WHERE {quoted(name)} IS NULL"
    for check in facts.checks:
        told = literal(f"CHECK constraint failed: {check.expression}")
        yield f"SELECT {_ID}, {told} FROM {rows} WHERE TRY({check.expression}) IS FALSE"
    for each in facts.references:
        told = literal(f"FOREIGN KEY constraint failed: no such row in {each.table!r}")
        pairs = zip(each.referred, each.columns, strict=True)
        same = " AND ".join(f"p.{quoted(theirs)} = c.{quoted(ours)}" for theirs, ours in pairs)
        yield (
            f"SELECT {_ID}, {told} FROM {rows} WHERE {_is_whole(each.columns)} "
            f"AND NOT EXISTS (SELECT 1 FROM {facts.beside(each.table)} AS p WHERE {same})"
        )


def _beside_the_table(move: Move, facts: TableFacts) -> Iterator[str]:
    """Of those that were chosen, the ones that have what is unique to a row of the table. (One that
    the batch itself changes or deletes may make room: that is tried.)"""
    keys = move.columns.keys if move.upserts else ()
    for each in _uniques(move, facts):
        yield (
            f"SELECT {_ID}, {_duplicate(each)} FROM {_as_in_the_table(move, facts, _CHOSEN)} "
            f"WHERE {_is_whole(each.columns)} AND EXISTS "
            f"(SELECT 1 FROM {facts.name} AS t WHERE {_same(each.columns)}{_stays(keys, facts)})"
        )


def _shared(uniques: Sequence[Constraint], move: Move, facts: TableFacts) -> str:
    """Of those that were chosen, the ones that have what is unique to several; and for each
    constraint, which of them it is: by the first that has it."""
    groups = {f"{_FIRST}_{number}": each for number, each in enumerate(uniques)}
    found = ", ".join(
        f"CASE WHEN {_is_whole(each.columns)} AND count(*) OVER {over} > 1 "
        f"THEN min({_ID}) OVER {over} END AS {group}"
        for group, each in groups.items()
        for over in [f"(PARTITION BY {listed(each.columns)})"]
    )
    return (
        f"SELECT {_ID}, {', '.join(groups)} "
        f"FROM (SELECT *, {found} FROM {_as_in_the_table(move, facts, _CHOSEN)}) "
        f"WHERE coalesce({', '.join(groups)}) IS NOT NULL ORDER BY {_ID}"
    )


def _uniques(move: Move, facts: TableFacts) -> Iterator[Constraint]:
    keys = set(move.columns.keys if move.upserts else ())
    return (each for each in facts.uniques if set(each.columns) != keys)


def _duplicate(unique: Constraint) -> str:
    values = " || ', ' || ".join(f"CAST({quoted(name)} AS varchar)" for name in unique.columns)
    return f"{literal(f'duplicate key, {listed(unique.columns)}: ')} || left({values}, 100)"


def _as_in_the_table(move: Move, facts: TableFacts, rows: str) -> str:
    kept = f" WHERE NOT {DELETED}" if DELETED in move.columns.beside else ""
    return f"(SELECT {_ID}, {_cast(facts, facts.types)} FROM {rows}{kept}) AS c"


def _cast(facts: TableFacts, names: Iterable[str]) -> str:
    return ", ".join(f"{facts.cast(name, quoted(name))} AS {quoted(name)}" for name in names)


def _is_whole(names: Iterable[str]) -> str:
    return " AND ".join(f"c.{quoted(name)} IS NOT NULL" for name in names)


def _same(names: Iterable[str]) -> str:
    return " AND ".join(f"t.{quoted(name)} = c.{quoted(name)}" for name in names)


def _stays(keys: Sequence[str], facts: TableFacts) -> str:
    """A row of the table whose key is not in the batch."""
    if not keys:
        return ""
    others = f"(SELECT {_cast(facts, keys)} FROM {_CHOSEN}) AS o"
    same = " AND ".join(f"t.{quoted(key)} = o.{quoted(key)}" for key in keys)
    return f" AND NOT EXISTS (SELECT 1 FROM {others} WHERE {same})"


# -- tried out ------------------------------------------------------------------------------------


def _tried(connection: Opened, move: Move) -> Iterator[tuple[int, str]]:
    """The numbers of rows that are refused whatever others there are, and why."""
    count = _count(connection)
    first, size = 1, count
    while first <= count:
        low, high = first, min(first + size - 1, count)
        told = _reason_between(connection, move, low, high)
        if told is None:
            first, size = high + 1, min(2 * size, count)
            continue
        while low < high:
            middle = (low + high) // 2
            if (found := _reason_between(connection, move, low, middle)) is None:
                low = middle + 1
            else:
                high, told = middle, found
        if (alone := _reason_between(connection, move, low, low)) is not None:
            yield low, alone
        first, size = low + 1, low - first + 1


def _behind_others(connection: Opened, move: Move) -> Iterator[tuple[int, str]]:
    """The numbers of rows that are refused behind those before them that are good, and why."""
    count = _count(connection)
    bad: list[str] = []
    good, size = 0, count
    while good < count:
        low, high = good + 1, min(good + size, count)
        if (told := _reason_between(connection, move, 1, high, bad)) is None:
            good, size = high, min(2 * size, count)
            continue
        while low < high:
            middle = (low + high) // 2
            if (found := _reason_between(connection, move, 1, middle, bad)) is None:
                low = middle + 1
            else:
                high, told = middle, found
        yield low, told
        bad.append(str(low))
        good, size = low, low - good


def _count(connection: Opened) -> int:
    counted = connection.execute(f"SELECT count(*) FROM {_CHOSEN}").fetchone()
    return int(counted[0]) if counted else 0


def _reason_between(
    connection: Opened, move: Move, low: int, high: int, without: Sequence[str] = ()
) -> str | None:
    others = f" AND {_NUMBER} NOT IN ({', '.join(without)})" if without else ""
    rows = f"(SELECT * FROM {_CHOSEN} WHERE {_NUMBER} BETWEEN {low} AND {high}{others})"
    return _reason(connection, replace(move, ready=rows))


def _reason(connection: Opened, move: Move) -> str | None:
    connection.execute("BEGIN")
    try:
        for statement in statements(move):
            connection.execute(statement)
    except REFUSALS as error:
        return str(error).splitlines()[0]
    finally:
        connection.execute("ROLLBACK")
    return None
