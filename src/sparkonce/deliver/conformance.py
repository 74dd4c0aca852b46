"""What every store has to keep, as tests: a new one is right when it passes them.

    class TestMine(Conformance):
        @pytest.fixture
        def database(self, tmp_path): return MyDatabase(...)   # a `Database`

They need neither Spark nor Kafka: rows are staged here as a task would, and what is in the table is
read by the database's own client. What happens when processes are killed is the verifier's part
(`sparkonce verify --ends`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa
import pytest
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from sparkonce.deliver.columns import BAD, DELETED, ROW, SEQUENCE, Columns
from sparkonce.deliver.store import Part, RowsRefused, Sources, Store, StoreError
from sparkonce.deliver.target import TableTarget
from sparkonce.errors import ConfigError, FencedError, SparkonceError
from sparkonce.stream.ledger import Entry

Row = Mapping[str, Any]
SCHEMA = StructType().add("id", LongType()).add("name", StringType())
ENTRY = Entry(
    query="q",
    batch=3,
    number=7,
    guarantee="exactly_once",
    host="here",
    pid=1,
    checkpoint="/c",
    sources=None,
)
SOURCES: Sources = [{"payments": {"0": 5, "1": 7}}, '{"a": "source of its own"}']
_ARROW = {"id": pa.int64(), "at": pa.int64(), DELETED: pa.bool_(), SEQUENCE: pa.int64()}


class Database(Protocol):
    """Where the store under test has its table."""

    supports_dead_letters: bool

    def target(self, **options: str) -> TableTarget:
        """With a table of (id bigint, name text) to be made, unless options say otherwise."""

    def rows(self, table: str = "target") -> list[dict[str, Any]]:
        """All rows, by the database's own client; none where there is no such table."""

    def staged(self) -> int:
        """How many attempts are staged somewhere."""


class Conformance:
    """Subclass it, and give a fixture `database`."""

    def test_rows_and_entry_are_visible_together_and_not_before(self, database: Database) -> None:
        store, epoch = _open(database)
        part = _stage(store, epoch, [{"id": 1, "name": "a"}, {"id": 2, "name": None}])
        assert database.rows() == []
        transaction = store.begin(epoch)
        assert transaction.load([part]).records == 2
        transaction.note(ENTRY, SOURCES)
        transaction.commit()
        held = store.holder()
        assert (held.epoch, held.entry, held.sources) == (epoch, ENTRY, SOURCES)
        assert _sorted(database.rows()) == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
        store.close()

    def test_nothing_stays_of_what_was_rolled_back(self, database: Database) -> None:
        store, epoch = _open(database)
        part = _stage(store, epoch, [{"id": 1, "name": "a"}])
        transaction = store.begin(epoch)
        transaction.load([part])
        transaction.note(ENTRY, SOURCES)
        transaction.rollback()
        transaction.rollback()
        store.discard(epoch, 1)
        assert (database.rows(), store.holder().entry, database.staged()) == ([], None, 0)
        store.close()

    def test_an_entry_without_rows(self, database: Database) -> None:
        store, epoch = _open(database)
        _write(store, epoch, [], ENTRY)
        assert (database.rows(), store.holder().entry) == ([], ENTRY)
        store.close()

    def test_rows_without_an_entry(self, database: Database) -> None:
        store, epoch = _open(database)
        _write(store, epoch, [_stage(store, epoch, [{"id": 1, "name": "a"}])], None)
        assert (len(database.rows()), store.holder().entry) == (1, None)
        store.close()

    def test_only_what_tasks_have_told_of_counts(self, database: Database) -> None:
        """A task's second attempt has staged the same rows beside those of the first."""
        store, epoch = _open(database)
        stage = store.stage(epoch, 1)
        batch = _batch([{"id": 1, "name": "a"}])
        stage(11, batch.schema, iter([batch]))
        told = Part(12, stage(12, batch.schema, iter([batch])), 1, batch.nbytes)
        _write(store, epoch, [told], ENTRY)
        assert len(database.rows()) == 1
        store.close()

    def test_rows_that_were_staged_and_are_not_there_any_more(self, database: Database) -> None:
        store, epoch = _open(database)
        part = _stage(store, epoch, [{"id": 1, "name": "a"}])
        transaction = store.begin(epoch)
        with pytest.raises(StoreError):
            transaction.load([replace(part, records=2)])
        transaction.rollback()
        assert database.rows() == []
        store.close()

    def test_no_entry_is_noted_twice(self, database: Database) -> None:
        store, epoch = _open(database)
        _write(store, epoch, [], ENTRY)
        part = _stage(store, epoch, [{"id": 1, "name": "a"}])
        transaction = store.begin(epoch)
        with pytest.raises(SparkonceError):
            transaction.load([part])
            transaction.note(ENTRY, SOURCES)
            transaction.commit()
        transaction.rollback()
        assert database.rows() == []
        store.close()

    def test_who_takes_over_finds_the_entry_and_removes_what_was_staged(
        self, database: Database
    ) -> None:
        former, epoch = _open(database)
        _write(former, epoch, [_stage(former, epoch, [{"id": 1, "name": "a"}])], ENTRY)
        _stage(former, epoch, [{"id": 2, "name": "b"}], attempt=2)
        former.close()
        store = _store(database)
        store.prepare()
        held = store.take_over()
        assert (held.entry, held.sources) == (ENTRY, SOURCES)
        assert held.epoch > epoch
        assert (len(database.rows()), database.staged()) == (1, 0)
        store.close()

    def test_the_former_one_is_refused(self, database: Database) -> None:
        former, epoch = _open(database)
        store, _ = _open(database)
        with pytest.raises(FencedError):
            former.begin(epoch)
        former.close()
        store.close()

    def test_a_transaction_that_was_open_when_another_took_over(self, database: Database) -> None:
        """It happened before, and the other one knows; or it never does."""
        former, epoch = _open(database)
        part = _stage(former, epoch, [{"id": 1, "name": "a"}])
        transaction = former.begin(epoch)
        transaction.load([part])
        store = _store(database)
        with ThreadPoolExecutor(1) as other:
            taken = other.submit(store.take_over)
            try:
                transaction.note(ENTRY, SOURCES)
                transaction.commit()
            except SparkonceError:
                transaction.rollback()
            held = taken.result()
        assert (held.entry is None) == (database.rows() == [])
        assert store.holder().entry == held.entry
        former.close()
        store.close()

    def test_pipelines_beside_each_other(self, database: Database) -> None:
        one, first = _open(database, pipeline="one")
        two, second = _open(database, pipeline="two")
        _write(one, first, [_stage(one, first, [{"id": 1, "name": "a"}])], ENTRY)
        other = replace(ENTRY, number=1)
        _write(two, second, [_stage(two, second, [{"id": 2, "name": "b"}])], other)
        assert (one.holder().entry, two.holder().entry) == (ENTRY, other)
        assert len(database.rows()) == 2
        one.close()
        two.close()

    def test_upserts_take_the_newest_row_of_a_key_and_delete(self, database: Database) -> None:
        store, epoch = _open(
            database,
            with_order=True,
            writeMode="upsert",
            keyColumns="id",
            deleteColumn="gone",
            sequenceBy="at",
        )
        first = [_change(1, "old", 1), _change(1, "new", 2), _change(2, "b", 1), _change(3, "c", 1)]
        _write(store, epoch, [_stage(store, epoch, first)], ENTRY)
        later = [_change(2, "b", 5, gone=True), _change(2, "back", 4), _change(3, "d", 2)]
        parts = [_stage(store, epoch, later, attempt=2)]
        _write(store, epoch, parts, replace(ENTRY, number=8))
        rows = [(row["id"], row["name"]) for row in _sorted(database.rows())]
        assert rows == [(1, "new"), (3, "d")]
        store.close()

    def test_several_rows_of_a_key_need_an_order(self, database: Database) -> None:
        store, epoch = _open(database, writeMode="upsert", keyColumns="id")
        part = _stage(store, epoch, [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}])
        transaction = store.begin(epoch)
        with pytest.raises(RowsRefused, match="sequenceBy"):
            transaction.load([part])
        transaction.rollback()
        assert database.rows() == []
        store.close()

    def test_rows_with_a_null_key_are_dropped_by_nobody(self, database: Database) -> None:
        """Null equals no key: each is a row of its own to the table, or one that it refuses."""
        given = {"writeMode": "upsert", "keyColumns": "id", "sequenceBy": "at"}
        given["deleteColumn"] = "gone"
        rows = [*(_change(None, f"{number}", number) for number in range(5)), _change(1, "a", 1)]
        refused = self._write_or_refuse(database, rows, given)
        assert len(database.rows()) == (0 if refused else 6)
        if database.supports_dead_letters:
            aside = [{**row, BAD: None, ROW: None} for row in rows]
            given["deadLetterTable"] = "dead"
            assert not self._write_or_refuse(database, aside, given)
            written, dead = len(database.rows()), len(database.rows("dead"))
            assert (written, dead) == ((1, 5) if refused else (6 + 5, 0))

    def _write_or_refuse(
        self, database: Database, rows: Sequence[Row], options: Mapping[str, str]
    ) -> bool:
        """Whether they were refused; if not, every row is accounted for."""
        store, epoch = _open(database, with_order=True, **options)
        transaction = store.begin(epoch)
        try:
            loaded = transaction.load([_stage(store, epoch, rows)])
            transaction.commit()
        except RowsRefused as refused:
            assert "null" in str(refused).lower()
            return True
        else:
            assert loaded.records + loaded.dead_letters == len(rows)
            return False
        finally:
            transaction.rollback()
            store.close()

    def test_rows_marked_as_bad_are_put_aside(self, database: Database) -> None:
        if not database.supports_dead_letters:
            with pytest.raises(ConfigError, match="deadLetterTable"):
                _open(database, deadLetterTable="dead")
            return
        store, epoch = _open(database, deadLetterTable="dead")
        bad = {"id": 2, "name": "b", BAD: "not for us", ROW: '{"id":2}'}
        part = _stage(store, epoch, [{"id": 1, "name": "a", BAD: None, ROW: None}, bad])
        transaction = store.begin(epoch)
        loaded = transaction.load([part])
        transaction.note(ENTRY, SOURCES)
        transaction.commit()
        assert (loaded.records, loaded.dead_letters) == (1, 1)
        dead = [(row["reason"], row["row"]) for row in database.rows("dead")]
        assert (dead, [row["id"] for row in database.rows()]) == ([("not for us", '{"id":2}')], [1])
        store.close()

    def test_rows_that_the_table_refuses(self, database: Database) -> None:
        """A second row with the same primary key, in the batch and in the table."""
        rows = [{"id": id_, "name": name} for id_, name in ((1, "a"), (2, "b"), (2, "c"), (3, "d"))]
        if not database.supports_dead_letters:
            pytest.skip("no constraint is known that every such table has")
        store, epoch = _open(database, keyColumns="id")
        part = _stage(store, epoch, rows)
        transaction = store.begin(epoch)
        with pytest.raises(RowsRefused, match="deadLetterTable"):
            transaction.load([part])
        transaction.rollback()
        store.close()
        aside = {BAD: None, ROW: None}
        store, epoch = _open(database, deadLetterTable="dead", keyColumns="id")
        for attempt in (1, 2):
            part = _stage(store, epoch, [{**row, **aside} for row in rows], attempt=attempt)
            _write(store, epoch, [part], replace(ENTRY, number=attempt))
        assert [row["id"] for row in _sorted(database.rows())] == [1, 2, 3]
        assert len(database.rows("dead")) == 1 + 4
        store.close()

    def test_a_table_that_is_not_there_or_lacks_a_column_is_refused(
        self, database: Database
    ) -> None:
        with pytest.raises(ConfigError, match="createTable"):
            _open(database, createTable="false")
        _open(database)[0].close()
        wider = StructType([*SCHEMA.fields, StructField("more", StringType())])
        with pytest.raises(ConfigError, match="more"):
            _store(database, wider, createTable="false").prepare()


def _open(database: Database, *, with_order: bool = False, **options: str) -> tuple[Store, int]:
    order = [StructField("gone", BooleanType()), StructField("at", LongType())]
    schema = StructType([*SCHEMA.fields, *(order if with_order else [])])
    store = _store(database, schema, **options)
    store.prepare()
    return store, store.take_over().epoch


def _store(database: Database, schema: StructType = SCHEMA, **options: str) -> Store:
    target = database.target(**options)
    columns = Columns.plan(
        schema, target.settings, type_of=target.type_of, nested_as_json=target.nested_as_json
    )
    return target.open_store(target.settings, columns)


def _stage(store: Store, epoch: int, rows: Sequence[Row], attempt: int = 1) -> Part:
    batch = _batch(rows)
    name = store.stage(epoch, attempt)(attempt, batch.schema, iter([batch]))
    return Part(attempt, name, batch.num_rows, batch.nbytes)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    fields = [(name, _ARROW.get(name, pa.string())) for name in rows[0]]
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=pa.schema(fields))


def _change(id_: int | None, name: str, at: int, *, gone: bool = False) -> Row:
    return {"id": id_, "name": name, "at": at, DELETED: gone, SEQUENCE: at}


def _write(store: Store, epoch: int, parts: Sequence[Part], entry: Entry | None) -> None:
    transaction = store.begin(epoch)
    transaction.load(parts)
    if entry is not None:
        transaction.note(entry, SOURCES)
    transaction.commit()


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["id"])
