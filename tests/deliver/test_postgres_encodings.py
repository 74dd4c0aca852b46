"""Databases in other encodings than UTF-8: text is what it was, or it is refused."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from deliver.postgres_schema import ASIDE, Schema, write
from sparkonce.deliver.columns import BAD, ROW
from sparkonce.deliver.store import Loaded
from sparkonce.errors import EncodeError
from sparkonce.local import LocalPostgres

KEPT = {
    "LATIN1": "é ÿ \x80 plain",
    "WIN1252": "é € „quoted“",
    "EUC_JP": "世界 ｶﾅ é",
    "SQL_ASCII": "é 世界 🎉",
    "UTF8": "é 世界 🎉",
}
NOT_KEPT = [("LATIN1", "€"), ("WIN1252", "世"), ("EUC_JP", "🎉"), ("EUC_JP", "¦")]
"""The last one is stored, and comes back as another one, U+FFE4."""


@pytest.fixture
def schema(request: pytest.FixtureRequest, postgres: LocalPostgres) -> Iterator[Schema]:
    """In a database of that encoding."""
    name = f"d_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{request.param}' LOCALE 'C' TEMPLATE template0"
        )
        yield Schema(postgres.url.rpartition("/")[0] + f"/{name}", "public")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def texts(schema: Schema, column: str = "name", table: str = "target") -> list[str]:
    with psycopg.connect(schema.url, client_encoding="UTF8") as connection:
        return [each for (each,) in connection.execute(f"SELECT {column} FROM {table} ORDER BY 1")]


@pytest.mark.parametrize(("schema", "text"), KEPT.items(), ids=KEPT, indirect=["schema"])
def test_text_is_what_it_was(schema: Schema, text: str) -> None:
    store = schema.store(createTable="true", writeMode="upsert", keyColumns="name")
    store.prepare()
    epoch = store.take_over().epoch
    for attempt in (1, 2):
        rows = [{"id": 1, "name": text}, {"id": 2, "name": "plain"}]
        assert write(store, epoch, rows, attempt) == Loaded(2)
    assert texts(schema) == sorted(["plain", text])
    store.close()


@pytest.mark.parametrize(("schema", "text"), NOT_KEPT, indirect=["schema"])
def test_text_that_the_database_can_not_keep(schema: Schema, text: str) -> None:
    schema.execute("CREATE TABLE target (id bigint, name text)")
    rows = [{"id": 1, "name": "é"}, {"id": 2, "name": f"é{text}"}, {"id": 3, "name": f"{text}\0"}]
    with pytest.raises(EncodeError, match=rf"'name'.*U\+{ord(text):04X}.*deadLetterTable"):
        schema.write(schema.store(), rows)
    assert schema.write(schema.store(dead="dead"), [row | ASIDE for row in rows]) == Loaded(1, 2)
    assert texts(schema) == ["é"]
    dead = [json.loads(each) for each in texts(schema, '"row"', "dead")]
    assert dead == rows[1:]
    assert all(f"U+{ord(text):04X}" in each for each in texts(schema, "reason", "dead"))


@pytest.mark.parametrize("schema", ["LATIN1", "UTF8"], indirect=True)
def test_rows_that_are_marked_with_such_text(schema: Schema) -> None:
    """Marked by the user: the reason and the row may have it as well."""
    schema.execute("CREATE TABLE target (id bigint, name text)")
    row = {"id": 1, "name": "世"}
    marked = row | {BAD: "not 世 \0", ROW: json.dumps(row, ensure_ascii=False)}
    assert schema.write(schema.store(dead="dead"), [marked]) == Loaded(0, 1)
    ((reason, found),) = schema.rows('reason, "row"', "dead")
    latin = "LATIN1" in schema.rows("getdatabaseencoding()", "(SELECT) AS nothing")[0]
    assert reason == ("not \\u4e16 \\u0000" if latin else "not 世 \\u0000")
    assert json.loads(found) == row


@pytest.mark.parametrize("schema", ["LATIN1"], indirect=True)
def test_characters_are_asked_for_once(schema: Schema) -> None:
    """And those that are kept beside others are told from them."""
    schema.execute("CREATE TABLE target (id bigint, name text)")
    every = [chr(code) for code in (*range(1, 0x250), 0x20AC, 0xFFFD, 0x1F389)]
    rows = [{"id": ord(each), "name": each, **ASIDE} for each in every]
    store, epoch = schema.open(dead="dead")
    for attempt in (1, 2):
        assert write(store, epoch, rows, attempt) == Loaded(0xFF, len(every) - 0xFF)
    store.close()
    kept = [chr(code) for code in range(1, 0x100)]
    assert texts(schema) == sorted([*kept, *kept])
