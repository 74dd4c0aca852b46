"""What the pipelines with rows that their table refuses have in common.

Of each record it is known beforehand where it belongs. Some rows are refused, most of them for what
their text has in it: a character that a database in LATIN1 can't keep, for which the table has a
constraint elsewhere, or bytes that are not valid UTF-8, which no database keeps. A third of the
rows have a null key, which equals no other, so each of them is a row of its own; the others come
twice in their batch, and the older of the two must never be seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sparkonce.verify.contract import Job, Record
from sparkonce.verify.pipelines import into_tables, latin1

KEPT_TEXT: Final = latin1.TEXT
REFUSED_TEXT: Final = "€"
"""Not in LATIN1."""
NOT_UTF8: Final = b"\xff"
READ_TEXT: Final = "\ufffd"
"""What there is of them in a dead letter."""
COLUMNS: Final = "id bigint UNIQUE, version int, amount int, text {text}, value {text}"
NOT_NEGATIVE: Final = "CHECK (amount >= 0)"
TAKES_TEXT: Final = f"CHECK (text <> '{REFUSED_TEXT}')"
"""For a database that could keep it."""
DEAD_LETTERS: Final = "dead_letters"
WRITING: Final = {"writeMode": "upsert", "keyColumns": "id", "sequenceBy": "version"}

_NUMBER: Final = r"t\d+-(\d{6})"


def rows(job: Job) -> DataFrame:
    found = into_tables.rows(job)
    number = F.regexp_extract("value", _NUMBER, 1).cast("bigint")
    is_alone = _has_null_key(number) | _is_bad(number)
    older = F.struct(F.lit(1).alias("version"), F.concat(F.lit("older "), "value").alias("value"))
    newer = F.struct(F.lit(2).alias("version"), F.col("value"))
    versions = F.when(is_alone, F.array(newer)).otherwise(F.array(newer, older))
    return found.select(
        F.when(~_has_null_key(number), number).alias("id"),
        F.when(_is_negative(number), -1).otherwise(1).alias("amount"),
        F.when(_is_not_utf8(number), F.lit(NOT_UTF8).cast("string"))
        .when(_is_unfit(number), REFUSED_TEXT)
        .otherwise(KEPT_TEXT)
        .alias("text"),
        F.explode(versions).alias("row"),
    ).select("id", "amount", "text", "row.*")


def records(kept: Iterable[tuple[str, str]], dead: Iterable[str]) -> list[Record]:
    """Of the table's texts and values, and of the dead letters' rows. What is not where it belongs,
    or not what it was, is nothing that the checker knows."""
    values = [
        value if _is_of_table(value) and text == KEPT_TEXT else f"kept: {text} {value}"
        for text, value in kept
    ]
    for row in dead:
        told: dict[str, Any] = json.loads(row)
        value, text = told["value"], told["text"]
        is_right = _is_dead_letter(value) and text == _text_of(value)
        values.append(value if is_right else f"put aside: {text} {value}")
    return into_tables.records(values)


def _is_unfit(number: Any) -> Any:
    """Of a number, or of a column of them, as all of these."""
    return number % 4 == 0


def _is_not_utf8(number: Any) -> Any:
    """Half of those whose text is not fit."""
    return number % 8 == 4


def _is_negative(number: Any) -> Any:
    return number % 8 == 1


def _is_bad(number: Any) -> Any:
    return _is_unfit(number) | _is_negative(number)


def _has_null_key(number: Any) -> Any:
    return number % 3 == 0


def _number(value: str) -> int:
    """-1 for what is no identity, an older version for one."""
    number = value.partition("-")[2][:6]
    return int(number) if value.startswith("t") and number.isdigit() else -1


def _is_of_table(value: str) -> bool:
    return _number(value) >= 0 and not _is_bad(_number(value))


def _is_dead_letter(value: str) -> bool:
    return _number(value) >= 0 and bool(_is_bad(_number(value)))


def _text_of(value: str) -> str:
    number = _number(value)
    if _is_not_utf8(number):
        return READ_TEXT
    return REFUSED_TEXT if _is_unfit(number) else KEPT_TEXT
