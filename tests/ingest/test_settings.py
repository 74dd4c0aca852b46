"""Options: checked before anything is opened, refused with their name and what to do."""

from __future__ import annotations

import pytest

from sparkonce.errors import ConfigError
from sparkonce.ingest.settings import Kind, TableSettings

PLAIN = {"url": "postgresql://u:secret@h/d", "dbtable": "t", "keyColumn": "id"}


def test_names_are_taken_in_any_case_and_defaults_filled_in() -> None:
    settings = TableSettings.parse({name.lower(): value for name, value in PLAIN.items()})
    assert (settings.kind, settings.order, settings.partition) == (Kind.POSTGRES, ("id",), "id")
    assert (settings.partitions, settings.rows_max, settings.starts_at) == (1, None, "earliest")
    assert TableSettings.parse(PLAIN | {"UPDATECOLUMN": "u"}).order == ("u", "id")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgres://h/d", Kind.POSTGRES),
        ("jdbc:postgresql://h/d", Kind.POSTGRES),
        ("sqlite:///a/b.db", Kind.SQLITE),
        ("duckdb:///a/b.duckdb", Kind.DUCKDB),
    ],
)
def test_the_scheme_says_which_database(url: str, kind: Kind) -> None:
    settings = TableSettings.parse(PLAIN | {"url": url})
    assert settings.kind is kind
    assert not settings.url.startswith("jdbc:")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keyColum": "id"}, "unknown option 'keyColum': did you mean 'keyColumn'"),
        ({"query": "SELECT 1"}, "give a table as dbtable"),
        ({"path": "/x"}, "call load\\(\\) without arguments"),
        ({"lowerBound": "1"}, "bounds are taken from each batch"),
        ({"user": ""}, "user is empty"),
        ({"url": "mysql://h/d"}, "url begins with 'mysql'"),
        ({"url": "h:5432"}, "url begins with 'h'"),
        ({"maxRowsPerBatch": "0"}, "maxRowsPerBatch='0'.*1 or more"),
        ({"numPartitions": "two"}, "numPartitions='two'"),
        ({"startingOffsets": "first"}, "earliest, latest"),
        ({"startingOffsets": "{by"}, "is no JSON"),
        ({"outbox": "yes"}, "outbox='yes'"),
        ({"deleteAfterPublishing": "true"}, "is for outbox=true"),
        (
            {"deleteAfterPublishing": "true", "outbox": "true", "startingOffsets": "latest"},
            "leaves out",
        ),
        ({"updateDelayMs": "5", "updateColumn": "u"}, "updateDelayMs is for SQLite and DuckDB"),
        ({"keyLag": "5", "updateColumn": "u"}, "keyLag and updateColumn exclude each other"),
        ({"keyLag": "5", "transactionColumn": "x"}, "keyLag and transactionColumn exclude"),
        ({"mode": "DROPMALFORMED"}, "would lose rows: set mode=PERMISSIVE"),
        ({"mode": "strict"}, "mode='strict'"),
        ({"columnNameOfCorruptRecord": "c"}, "is for mode=PERMISSIVE"),
        ({"url": "sqlite:///x", "keyLag": "5"}, "keyLag is for PostgreSQL"),
        ({"url": "duckdb:///x", "user": "me"}, "user is for PostgreSQL"),
        ({"url": "sqlite:///x", "updateDelayMs": "5"}, "updateDelayMs is for updateColumn"),
    ],
)
def test_what_is_wrong_is_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TableSettings.parse(PLAIN | options)


@pytest.mark.parametrize("missing", PLAIN)
def test_what_is_needed_is_told(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"{missing} is missing"):
        TableSettings.parse({name: value for name, value in PLAIN.items() if name != missing})


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(TableSettings.parse(PLAIN | {"password": "secret"}))
    for url in (
        "mysql://me:secret@h/d",
        "host=h user=me password=secret",
        "host=h:1 password=secret",
        "secret",
        "me/secret://h/d",
    ):
        with pytest.raises(ConfigError) as caught:
            TableSettings.parse(PLAIN | {"url": url})
        assert "secret" not in str(caught.value)
