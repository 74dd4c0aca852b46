"""No password is ever told: in no message, no cause, no traceback and no log, at either end."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pytest
from pyspark.sql.types import StructType

from deliver.postgres_schema import ID, NAME, Schema, batch_of
from pooler import Pooler
from sparkonce.deliver import duckdb
from sparkonce.deliver.columns import Columns
from sparkonce.deliver.postgres import stage
from sparkonce.deliver.postgres.characters import Characters
from sparkonce.ingest.reader import open_table
from sparkonce.ingest.settings import TableSettings
from sparkonce.local import LocalPostgres
from sparkonce.redaction import redact, redacted
from test_postgresql import MALFORMED

CANARY = "canary%41/ß's"
"""With what URLs, connection strings and Python each write in their own way."""
QUOTED = "canary%2541%2F%C3%9F%27s"
WORDS = "in words"
CODED = ("canary", "%2541", "ß's")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are not there are given no time to come."""
    monkeypatch.setattr("sparkonce.deliver.postgres.connection.PATIENCE_S", 0)
    monkeypatch.setattr("sparkonce.ingest.postgres.connection.PATIENCE_S", 0)


@pytest.fixture
def schema(postgres: LocalPostgres, postgres_schema: str) -> Schema:
    return Schema(postgres.url, postgres_schema)


@pytest.fixture
def user(schema: Schema) -> Iterator[str]:
    """Whose password is the canary."""
    name = f"{schema.name}_user"
    password = CANARY.replace("'", "''")
    schema.execute(f"CREATE USER {name} PASSWORD '{password}'")
    schema.execute(f"GRANT ALL ON SCHEMA {schema.name} TO {name}")
    yield name
    schema.execute(f"DROP OWNED BY {name} CASCADE")
    schema.execute(f"DROP USER {name}")


Try = Callable[[Callable[[], object]], BaseException]


@pytest.fixture
def fails(caplog: pytest.LogCaptureFixture) -> Try:
    """Runs what must fail, and looks through all that is to be seen of it."""
    caplog.set_level(logging.DEBUG)

    def check(action: Callable[[], object]) -> BaseException:
        with pytest.raises(Exception) as raised:
            action()
        error = raised.value
        for text in (*_texts(error), caplog.text):
            for part in CODED:
                assert part not in text, text.replace(part, "*" * len(part))
        assert str(error), "it says nothing at all"
        return error

    return check


def _texts(error: BaseException) -> Iterator[str]:
    yield "".join(traceback.format_exception(error))
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None:
            yield from (str(one), repr(one), repr(one.args), str(getattr(one, "details", "")))
            if isinstance(one, psycopg.Error):
                yield str(one.diag.message_primary)
            left += [one.__cause__, one.__context__]


def forms(host: str, port: int, user: str, database: str = "postgres") -> dict[str, dict[str, str]]:
    """All the ways to give a password."""
    escaped = CANARY.replace("'", "\\'")
    return {
        "in the url": {"url": f"postgresql://{user}:{QUOTED}@{host}:{port}/{database}"},
        "as a parameter": {
            "url": f"postgresql://{host}:{port}/{database}?user={user}&password={QUOTED}"
        },
        "as JDBC has it": {
            "url": f"jdbc:postgresql://{host}:{port}/{database}?user={user}&password={QUOTED}"
        },
        WORDS: {
            "url": f"host={host} port={port} dbname={database} user={user} password='{escaped}'"
        },
        "as an option": {
            "url": f"postgresql://{host}:{port}/{database}",
            "user": user,
            "password": CANARY,
        },
    }


FORMS = sorted(forms("h", 1, "u"))


def source(**options: str) -> Any:
    return open_table(TableSettings.parse({"dbtable": "t", "keyColumn": "id", **options}))


def duckdb_store(path: str, **options: str) -> Any:
    made = duckdb.target({"path": path, "dbtable": "t", "pipeline": "p"} | options, None)
    columns = Columns.plan(
        StructType([ID, NAME]), made.settings, type_of=made.type_of, nested_as_json=False
    )
    return made.open_store(made.settings, columns)


# -- what can't be understood ---------------------------------------------------------------------


@pytest.mark.parametrize("url", MALFORMED.values(), ids=MALFORMED)
def test_urls(fails: Try, schema: Schema, url: str) -> None:
    fails(lambda: source(url=url))
    fails(lambda: schema.store(url=url))


@pytest.mark.parametrize("login", ["", "?user=u&password="], ids=["login", "parameter"])
def test_urls_in_places_of_others(fails: Try, schema: Schema, tmp_path: Path, login: str) -> None:
    url = f"postgresql://h/db{login}canary" if login else "postgresql://u:canary@h/db"
    fails(lambda: schema.store(dbtable=url).prepare())
    fails(lambda: schema.store(ledgerTable=url).prepare())
    fails(lambda: schema.store(stagingSchema=url).prepare())
    fails(lambda: schema.store(lockTimeout=url))
    fails(lambda: schema.store(nosuch=url))
    fails(lambda: source(url=schema.url, dbtable=url).check())
    fails(lambda: source(url=schema.url, keyColumn=url, dbtable="pg_class").check())
    (tmp_path / "x").touch()
    fails(lambda: source(url=f"sqlite://{tmp_path}/x", dbtable=url).check())
    fails(lambda: source(url=f"duckdb://{tmp_path}/x", dbtable=url).check())
    fails(lambda: duckdb_store(f"{tmp_path}/y", dbtable=url).prepare())


LOGIN = "u:canary@h"
FILES = {
    "another database": "mysql://u:canary@h/db",
    "PostgreSQL": "postgresql://u:canary@h/db",
    "attached": "postgres:host=h user=u password=canary",
    "attached by its URL": "postgres:postgresql://u:canary@h/db",
    "MotherDuck": "md:db?motherduck_token=canary",
    "a parameter": "/nowhere/x?password=canary",
}


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_places_that_are_no_files(fails: Try, path: str) -> None:
    fails(lambda: duckdb_store(path).prepare())
    fails(lambda: source(url=path).check())
    place = f"{LOGIN}/{path}"  # lines of this file are in tracebacks
    fails(lambda: source(url=f"duckdb://{place}").check())
    fails(lambda: source(url=f"sqlite://{place}").check())


@pytest.mark.parametrize("name", ["s3_secret_access_key", "no_such_password"])
def test_settings_that_are_handed_through(fails: Try, tmp_path: Path, name: str) -> None:
    fails(lambda: duckdb_store(f"{tmp_path}/x", **{f"duckdb.{name}": CANARY}).prepare())
    fails(lambda: source(url=f"duckdb://{tmp_path}/x?{name}={QUOTED}").check())


# -- servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_nobody_there(fails: Try, schema: Schema, form: str) -> None:
    for host, port in (("127.0.0.1", 1), ("no-such-host.invalid", 5432)):
        given = forms(host, port, "u")[form]
        fails(lambda: source(**given).check())  # noqa: B023
        fails(lambda: schema.store(**given).prepare())  # noqa: B023


@pytest.mark.parametrize("form", FORMS)
def test_a_password_that_is_wrong(
    fails: Try, postgres: LocalPostgres, schema: Schema, form: str
) -> None:
    given = forms("127.0.0.1", postgres.port, "postgres")[form]
    error = fails(lambda: schema.store(**given).prepare())
    assert "authentication failed" in str(error)
    error = fails(lambda: source(**given).check())
    if form != WORDS:  # which is no URL, as the source says
        assert "authentication failed" in str(error)


@pytest.mark.parametrize("form", [form for form in FORMS if form != WORDS])
@pytest.mark.parametrize(
    "says",
    [f"who is u with {CANARY}?", f"postgresql://u:{QUOTED}@h/db is full"],
    ids=["plainly", "in a URL"],
)
def test_a_pooler_that_repeats_it(
    fails: Try, postgres: LocalPostgres, schema: Schema, user: str, form: str, says: str
) -> None:
    """To drivers, and to tasks, which have connections of their own."""
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text)")
    schema.execute(f"GRANT ALL ON target TO {user}")
    given = forms("127.0.0.1", postgres.port, user)[form]
    store, epoch = schema.open(**given)
    tasks = store.stage(epoch, 1)
    table = source(dbtable=f"{schema.name}.target", **given)
    schema.execute("INSERT INTO target VALUES (1, 'a')")
    start = table.start(latest=False)
    end = table.advance(start, None)
    (span,) = table.spans(start, end)
    columns = table.columns()
    with Pooler(postgres.port, says) as pooler:
        elsewhere = forms("127.0.0.1", pooler.port, user)[form]
        fails(lambda: source(**elsewhere).check())
        fails(lambda: schema.store(**elsewhere).prepare())
        fails(lambda: type(tasks)(**_fields(tasks, pooler.port))(1, *_rows()))
        table._info = {**table._info, "port": str(pooler.port)}
        fails(lambda: list(table.read(start, end, span, columns)))
    store.close()


def test_a_pooler_that_repeats_it_to_a_task_that_asks_about_characters(
    fails: Try,
    postgres: LocalPostgres,
    schema: Schema,
    user: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of a COPY: the error comes back through ADBC, which is no code of Python's."""
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text)")
    schema.execute(f"GRANT ALL ON target TO {user}")
    given = forms("127.0.0.1", postgres.port, user)["as an option"]
    store, epoch = schema.open(**given)
    tasks = store.stage(epoch, 1)
    batch = batch_of([{"id": 1, "name": "é"}])
    with Pooler(postgres.port, f"who is u with {CANARY}?") as pooler:
        elsewhere = type(tasks)(**_fields(tasks, pooler.port))._url
        asking = Characters("LATIN1", lambda: adbc.connect(elsewhere))
        monkeypatch.setitem(stage._characters, tasks._url, asking)
        error = fails(lambda: tasks(1, batch.schema, iter([batch])))
    assert "who is u with ***?" in str(error)
    store.close()


def test_the_environment(
    fails: Try, postgres: LocalPostgres, schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", CANARY)
    with Pooler(postgres.port, f"who is u with {CANARY}?") as pooler:
        url = f"postgresql://postgres@127.0.0.1:{pooler.port}/postgres"
        fails(lambda: source(url=url).check())
        fails(lambda: schema.store(url=url).prepare())
    fails(lambda: source(url=f"postgresql://postgres@127.0.0.1:{postgres.port}/x").check())


def test_statements_that_fail_and_connections_that_die(
    fails: Try, postgres: LocalPostgres, schema: Schema, user: str
) -> None:
    given = forms("127.0.0.1", postgres.port, user)["in the url"]
    fails(lambda: schema.store(**given).prepare())  # no such table
    schema.execute("CREATE TABLE target (id bigint PRIMARY KEY, name text)")
    fails(lambda: schema.store(**given).prepare())  # no privileges
    fails(lambda: source(dbtable=f"{schema.name}.target", **given).start(latest=True))
    schema.execute(f"GRANT ALL ON target TO {user}")
    store, epoch = schema.open(**given)
    transaction = store.begin(epoch)
    ours = f"pg_stat_activity WHERE usename = '{user}'"
    schema.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM {ours}")
    fails(transaction.commit)
    password = urlsplit(postgres.url).password
    assert password and password not in str(store)
    schema.execute(f"ALTER USER {user} PASSWORD 'another'")
    fails(lambda: store.begin(epoch))
    fails(store.holder)
    tasks = store.stage
    fails(lambda: tasks(epoch, 1))
    store.close()


def _fields(stage: Any, port: int) -> dict[str, Any]:
    names = type(stage).__dataclass_fields__
    fields = {name: getattr(stage, name) for name in names}
    return fields | {"info": {**stage.info, "port": str(port)}}


def _rows() -> tuple[Any, Iterator[Any]]:
    batch = batch_of([{"id": 1, "name": "a"}])
    return batch.schema, iter([batch])


# -- the one place --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("mysql://u:pw@h", "mysql://u:***@h"),
        ("postgresql://u:a@b@h/db", "postgresql://u:***@h/db"),
        ("no postgresql://u:secretly", "no postgresql://u:***@"),
        ("host=h password=pw port=1", "host=h password=*** port=1"),
        ("host=h password='p w' port=1", "host=h password=*** port=1"),
        ("?user=u&sslpassword=pw&x=1", "?user=u&sslpassword=***&x=1"),
        ("postgresql://u:12/34@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:12?34@h", "postgresql://u:***@h"),
        ("postgresql://u:12,34@h", "postgresql://u:***@h"),
        ("postgresql://h:5432/db", None),
        ("postgresql://h:5432,i:5433/db?user=u", None),
        ("postgresql://h:5432/db is full, ask u@h", None),
        ("postgresql://user:password@host:5432/database", None),
        ("url, user and password", None),
    ],
)
def test_what_looks_like_one(said: str, told: str | None) -> None:
    assert redacted(said) == (told or said)


def test_an_error_and_all_behind_it() -> None:
    secret = "pw"
    try:
        try:
            raise OSError(f"mysql://u:{secret}@h")
        except OSError as error:
            raise ValueError(f"password={secret}") from error
    except ValueError as error:
        redact(error)
        assert secret not in "".join(traceback.format_exception(error))
