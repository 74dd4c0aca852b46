"""Rows that DuckDB does not take: which they are, and what it costs to find them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from deliver.duckdb_file import Warehouse
from deliver.postgres_schema import ASIDE, ID, NAME
from sparkonce.deliver.columns import DELETED, SEQUENCE
from sparkonce.deliver.duckdb import bad_rows
from sparkonce.deliver.store import Loaded, RowsRefused
from sparkonce.errors import ConfigError

AT, GONE = StructField("at", LongType()), StructField("gone", BooleanType())
CHANGES = StructType([ID, NAME, AT, GONE])
UPSERTS = {
    "writeMode": "upsert",
    "keyColumns": "id",
    "sequenceBy": "at",
    "deleteColumn": "gone",
    "dead": "dead",
}


@pytest.fixture
def file(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "w.duckdb")


BAD_ROWS = [
    pytest.param("id smallint, name varchar", {"id": 40_000, "name": "a"}, id="overflow"),
    pytest.param("id bigint, name varchar CHECK (name <> 'x')", {"id": 1, "name": "x"}, id="check"),
    pytest.param("id bigint, name varchar NOT NULL", {"id": 1, "name": None}, id="not null"),
    pytest.param("id bigint, name uuid", {"id": 1, "name": "no uuid"}, id="cast"),
    pytest.param("id bigint, name varchar PRIMARY KEY", {"id": 1, "name": "b"}, id="duplicate"),
    pytest.param(
        "id bigint REFERENCES parent (id), name varchar", {"id": 7, "name": "c"}, id="reference"
    ),
    pytest.param(
        "id bigint, name varchar, more int CHECK (more IS NULL OR id < 9)",
        {"id": 1, "name": "a"},
        id="none",
    ),
]
GOOD = "6a2f41a3-c54c-fce8-32d2-0324e1c32e22"


@pytest.mark.parametrize(("columns", "bad"), BAD_ROWS)
def test_a_bad_row_fails_the_batch_or_is_put_aside(
    file: Warehouse, columns: str, bad: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    file.execute("CREATE TABLE parent (id bigint PRIMARY KEY)")
    file.execute("INSERT INTO parent VALUES (1), (2)")
    file.execute(f"CREATE TABLE target ({columns})")
    good = {"id": 2, "name": GOOD if "uuid" in columns else "b"}
    if request.node.callspec.id == "none":
        assert file.write(file.store(dead="dead"), [good | ASIDE, bad | ASIDE]) == Loaded(2)
        return
    with pytest.raises(RowsRefused, match="deadLetterTable"):
        file.write(file.store(), [good, bad])
    assert file.rows() == []
    loaded = file.write(file.store(dead="dead"), [good | ASIDE, bad | ASIDE], attempt=2)
    assert loaded == Loaded(1, 1)
    assert [id_ for id_, _ in file.rows()] == [2]
    ((reason, row),) = file.rows('reason, "row"', "dead")
    assert reason
    assert json.loads(row) == bad


@pytest.mark.parametrize("schema", ["s", "w.s"])
@pytest.mark.parametrize("judged", [True, False], ids=["judged", "tried"])
def test_a_foreign_key_in_another_schema(
    file: Warehouse, schema: str, judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of the same name in the main schema is another one."""
    if not judged:
        monkeypatch.setattr(bad_rows, "_judge", lambda *given, **named: 0)
    file.execute("CREATE TABLE parent (id bigint)")
    file.execute("CREATE SCHEMA s")
    file.execute("CREATE TABLE s.parent (id bigint PRIMARY KEY)")
    file.execute("CREATE TABLE s.target (id bigint REFERENCES s.parent (id), name varchar)")
    file.execute("INSERT INTO s.parent VALUES (1), (2)")
    rows = [{"id": id_, "name": "a", **ASIDE} for id_ in (1, 2, 7)]
    store = file.store(dbtable=f"{schema}.target", dead="dead")
    assert file.write(store, rows) == Loaded(2, 1)
    assert file.rows(table="s.target") == [(1, "a"), (2, "a")]
    ((row,),) = file.rows('"row"', "dead")
    assert json.loads(row)["id"] == 7


@pytest.mark.parametrize("judged", [True, False], ids=["judged", "tried"])
def test_many_bad_rows_of_all_kinds(
    file: Warehouse, judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by what the catalogue asks, or by trying: the same ones."""
    if not judged:
        monkeypatch.setattr(bad_rows, "_judge", lambda *given, **named: 0)
    file.execute(
        "CREATE TABLE target (id smallint PRIMARY KEY, name varchar NOT NULL CHECK (name <> 'x'))"
    )
    file.execute("INSERT INTO target VALUES (4, 'here before')")
    rows = [{"id": number, "name": "a", **ASIDE} for number in range(100)]
    rows[10]["id"] = 40_000
    rows[11]["name"] = None
    rows[12]["name"] = "x"
    rows[13]["id"] = 50  # the second of them is bad
    assert file.write(file.store(dead="dead"), rows) == Loaded(95, 5)
    assert len(file.rows()) == 96
    assert {json.loads(row)["id"] for (row,) in file.rows('"row"', "dead")} == {
        4,
        40_000,
        11,
        12,
        50,
    }


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each trial."""
    trials: list[int] = []
    reason = bad_rows._reason

    def counted(*given: Any) -> str | None:
        trials.append(1)
        return reason(*given)

    monkeypatch.setattr(bad_rows, "_reason", counted)
    return trials


@pytest.mark.parametrize("bad", [1, 50])
def test_what_bad_rows_cost_does_not_grow_with_the_batch(
    file: Warehouse, bad: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials, where the catalogue does not tell: here a default of a column that is not written."""
    file.execute("CREATE TABLE target (id bigint, name varchar, more int, CHECK (name <> 'x'))")
    count = 5_000
    rows = [
        {"id": id_, "name": "x" if id_ % (count // bad) == 7 else "a", **ASIDE}
        for id_ in range(count)
    ]
    assert file.write(file.store(dead="dead"), rows) == Loaded(count - bad, bad)
    assert len(tried) == 1  # the catalogue told
    tried.clear()
    monkeypatch.setattr(bad_rows, "_judge", lambda *given, **named: 0)
    assert file.write(file.store(dead="dead"), rows, attempt=2) == Loaded(count - bad, bad)
    assert len(tried) < 10 + bad * 2 * (count // bad).bit_length()


@pytest.mark.parametrize(
    ("unique", "trials"),
    [
        pytest.param("(name)", 2, id="plain"),
        pytest.param("(NAME, id)", 2, id="of several"),
        pytest.param("(name, lower(name))", 10 + 20 * 2 * 2 * 5, id="computed"),
    ],
)
def test_what_is_unique_by_an_index(
    file: Warehouse, tried: list[int], unique: str, trials: int
) -> None:
    """An index is no constraint to the catalogue; what it computes is found by trying."""
    file.execute('CREATE TABLE target (id bigint, name varchar, "a, b" int)')
    file.execute(f"CREATE UNIQUE INDEX one ON target {unique}")
    file.execute("INSERT INTO target VALUES (3, '3', 0)")
    rows = [{"id": id_, "name": str(id_), **ASIDE} for id_ in range(500)]
    for number in range(26, 500, 25):
        rows[number] = rows[number - 1]
    assert file.write(file.store(dead="dead"), rows) == Loaded(480, 20)
    assert len(file.rows()) == 481
    assert len(tried) <= trials


def test_a_chain_of_rows_each_second_to_the_one_before(
    file: Warehouse, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one pass over what they share, however long it is."""
    columns = "id bigint UNIQUE, name varchar UNIQUE, more int"
    file.execute(f"CREATE TABLE target ({columns})")
    judged: list[int] = []
    judge = bad_rows._judge

    def counted(*given: Any, **named: Any) -> int:
        judged.append(1)
        return judge(*given, **named)

    monkeypatch.setattr(bad_rows, "_judge", counted)
    pairs = [(n // 2, str((n + 1) // 2)) for n in range(400)]
    rows = [{"id": id_, "name": name, **ASIDE} for id_, name in pairs]
    assert file.write(file.store(dead="dead"), rows) == Loaded(200, 200)
    assert file.rows() == [(n, str(n)) for n in range(200)]
    assert len(judged) + len(tried) < 10


# -- keys -----------------------------------------------------------------------------------------


def changes(*rows: tuple[Any, str | None, int, bool]) -> list[dict[str, Any]]:
    return [
        {"id": id_, "name": name, "at": at, DELETED: gone, SEQUENCE: at, **ASIDE}
        for id_, name, at, gone in rows
    ]


def test_the_row_before_a_bad_one_is_the_newest(file: Warehouse) -> None:
    """As if the changes of a key were written one after the other."""
    columns = "id bigint PRIMARY KEY, name varchar CHECK (name <> 'x'), \"at\" bigint"
    file.execute(f"CREATE TABLE target ({columns})")
    rows = changes(
        (1, "a", 1, False),
        (1, "b", 2, False),
        (1, "x", 3, False),
        (1, "x", 4, False),
        (2, "x", 1, False),
        (3, "c", 1, False),
        (3, "x", 3, False),
        (3, None, 2, True),
        (4, "x", 1, False),
        (4, "d", 2, False),
    )
    assert file.write(file.store(CHANGES, **UPSERTS), rows) == Loaded(6, 4)
    assert file.rows() == [(1, "b"), (4, "d")]
    what = "\"row\"->>'id' AS id, \"row\"->>'at' AS at"
    assert sorted(file.rows(what, "dead")) == [("1", "3"), ("1", "4"), ("2", "1"), ("3", "3")]


def test_what_is_unique_beside_the_keys(file: Warehouse) -> None:
    file.execute('CREATE TABLE target (id bigint PRIMARY KEY, name varchar UNIQUE, "at" bigint)')
    file.execute("INSERT INTO target VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0)")
    rows = changes((4, "a", 1, False), (5, "new", 1, False), (6, "new", 1, False))
    assert file.write(file.store(CHANGES, **UPSERTS), rows) == Loaded(1, 2)
    assert [id_ for id_, _ in file.rows()] == [1, 2, 3, 5]


UNIQUES = [
    pytest.param([(1, "y"), (3, "y"), (4, "z")], [3, 4], id="to one that the table refuses"),
    pytest.param([(5, "y"), (5, "z"), (6, "z")], [5, 6], id="to a second one"),
    pytest.param([(5, "y"), (6, "y"), (6, "z"), (7, "z")], [5, 6], id="to a third one"),
    pytest.param([(5, "x"), (5, "y"), (6, "z")], [5, 6], id="to one that is found by trying"),
]


@pytest.mark.parametrize(("batch", "good"), UNIQUES)
def test_who_is_second_to_a_bad_row_is_not_bad(
    file: Warehouse, batch: list[tuple[int, str]], good: list[int]
) -> None:
    """As if they were written one after the other."""
    check = "CHECK (name <> 'x' OR more IS NOT NULL)"  # of a column that is not written
    columns = f"name varchar UNIQUE, id bigint PRIMARY KEY, more int, {check}"
    file.execute(f"CREATE TABLE target ({columns})")
    file.execute("INSERT INTO target VALUES ('old', 1, 0)")
    rows = [{"id": id_, "name": name, **ASIDE} for id_, name in batch]
    loaded = file.write(file.store(dead="dead"), rows)
    assert [id_ for id_, _ in file.rows()] == [1, *good]
    assert loaded == Loaded(len(good), len(batch) - len(good))


def test_a_row_that_the_batch_deletes_makes_room(file: Warehouse) -> None:
    """Beside a bad row too."""
    columns = "id bigint PRIMARY KEY, name varchar UNIQUE CHECK (name <> 'x'), \"at\" bigint"
    file.execute(f"CREATE TABLE target ({columns})")
    file.execute("INSERT INTO target VALUES (2, 'a', 0)")
    rows = changes((1, "a", 1, False), (2, None, 1, True), (3, "x", 1, False))
    assert file.write(file.store(CHANGES, **UPSERTS), rows) == Loaded(2, 1)
    assert file.rows() == [(1, "a")]


def test_keys_are_compared_as_the_table_compares_them(file: Warehouse) -> None:
    """They are staged as text here, and one is no key at all."""
    file.execute('CREATE TABLE target (id int PRIMARY KEY, name varchar, "at" bigint)')
    fields = StructType([StructField("id", StringType()), *CHANGES.fields[1:]])
    rows = changes(("1", "a", 1, False), ("01", "b", 2, False), ("1", "old", 0, False))
    assert file.write(file.store(fields, **UPSERTS), rows) == Loaded(3)
    assert file.rows() == [(1, "b")]
    rows = changes(("1", "c", 1, False), ("01", "d", 2, False), ("one", "bad", 1, False))
    assert file.write(file.store(fields, **UPSERTS), rows, attempt=2) == Loaded(2, 1)
    assert file.rows() == [(1, "d")]
    del (unordered := dict(UPSERTS))["sequenceBy"]
    rows = [{name: row[name] for name in row if name != SEQUENCE} for row in rows]
    with pytest.raises(RowsRefused, match="sequenceBy"):
        file.write(file.store(fields, **unordered), rows, attempt=3)
    rows = changes(("001", None, 9, True))
    assert file.write(file.store(fields, **UPSERTS), rows, attempt=4) == Loaded(1)
    assert file.rows() == []


def test_null_keys_are_rows_of_their_own_where_keys_are_unique(file: Warehouse) -> None:
    file.execute('CREATE TABLE target (id bigint UNIQUE, name varchar, "at" bigint)')
    rows = changes((None, "a", 1, False), (None, "b", 2, False), (None, None, 3, True))
    assert file.write(file.store(CHANGES, **UPSERTS), rows) == Loaded(3)
    assert sorted(name for _, name in file.rows()) == ["a", "b"]


def test_columns_may_have_any_name(file: Warehouse) -> None:
    """`_id` and `reason` were names of ours."""
    names = ["_id", "reason", "r", "s", "t", "n", "excluded", "g", "c", "o", "p", "b", "number"]
    fields = StructType([StructField(name, LongType()) for name in names])
    columns = ", ".join(f'"{name}" smallint' for name in names)
    file.execute(f"CREATE TABLE target ({columns}, PRIMARY KEY (_id, r))")
    options = {"writeMode": "upsert", "keyColumns": "_id,r", "dead": "dead"}
    rows = [dict.fromkeys(names, 1) | ASIDE, dict.fromkeys(names, 40_000) | ASIDE]
    assert file.write(file.store(fields, **options), rows) == Loaded(1, 1)
    ((row,),) = file.rows('"row"', "dead")
    assert json.loads(row) == dict.fromkeys(names, 40_000)


def test_a_child_and_its_parent_in_one_batch(file: Warehouse) -> None:
    """A limit of DuckDB's: one statement does not take them."""
    file.execute("CREATE TABLE target (id bigint PRIMARY KEY, name bigint REFERENCES target (id))")
    rows = [{"id": 1, "name": None}, {"id": 2, "name": "1"}]
    with pytest.raises(RowsRefused, match="foreign key"):
        file.write(file.store(), rows)
    aside = [row | ASIDE for row in rows]
    assert file.write(file.store(dead="dead"), aside, attempt=2) == Loaded(1, 1)
    child = [{"id": 3, "name": "1", **ASIDE}]
    assert file.write(file.store(dead="dead"), child, attempt=3) == Loaded(1)


@pytest.mark.parametrize("table", ["s.target", "w.main.target", '"TARGET"', "w.target"])
def test_wherever_the_table_is(file: Warehouse, table: str) -> None:
    file.execute("CREATE SCHEMA s")
    file.execute(f"CREATE TABLE {table} (id smallint, name varchar NOT NULL)")
    rows = [
        {"id": id_, "name": name, **ASIDE} for id_, name in ((1, "a"), (40_000, "b"), (2, None))
    ]
    store = file.store(dead="dead", dbtable=table)
    assert file.write(store, rows) == Loaded(1, 2)
    assert file.rows(table=table) == [(1, "a")]


# -- columns that came between two runs -----------------------------------------------------------


def test_a_column_that_is_new_in_the_dataframe(file: Warehouse) -> None:
    file.execute("CREATE TABLE target (id bigint, name varchar)")
    more = StructType([ID, NAME, StructField("more", LongType())])
    with pytest.raises(ConfigError, match=r"no column more.*mergeSchema"):
        file.store(more).prepare()
    file.write(file.store(more, mergeSchema="true"), [{"id": 1, "name": "a", "more": 5}])
    assert file.rows("id, name, more") == [(1, "a", 5)]


def test_a_column_whose_name_differs_by_its_letters_case_is_the_same(file: Warehouse) -> None:
    """To DuckDB; nothing is added."""
    file.execute("CREATE TABLE target (id bigint, NAME varchar)")
    file.write(file.store(mergeSchema="true"), [{"id": 1, "name": "a"}])
    assert file.rows("*") == [(1, "a")]


def test_columns_that_are_missing_are_all_named(file: Warehouse) -> None:
    file.execute("CREATE TABLE target (id bigint)")
    more = StructType([ID, NAME, StructField("more", LongType())])
    with pytest.raises(ConfigError, match=r"no column name, more"):
        file.store(more).prepare()


def test_a_column_that_is_new_in_the_table(file: Warehouse) -> None:
    file.execute("CREATE TABLE target (id bigint, name varchar, more bigint DEFAULT 7)")
    file.write(file.store(), [{"id": 1, "name": "a"}])
    assert file.rows("id, name, more") == [(1, "a", 7)]
