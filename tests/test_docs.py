"""What the documents say is what the code has: settings, states, promises, links, examples."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import duckdb
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import types as t

from sparkonce.deliver import row as ledger_row
from sparkonce.deliver import settings as deliver
from sparkonce.deliver import sql
from sparkonce.deliver.delta.types import type_of as delta_type
from sparkonce.deliver.duckdb.types import type_of as duckdb_type
from sparkonce.deliver.postgres.types import type_of as postgres_type
from sparkonce.deliver.store import Stage, Store, Transaction
from sparkonce.encode import Codec
from sparkonce.encode.columns import SOURCE_FIELDS
from sparkonce.errors import ConfigError
from sparkonce.guarantees import NEEDS, Guarantee
from sparkonce.ingest.settings import TableSettings as SourceSettings
from sparkonce.options import _FIELD, _READERS, ProducerOptions
from sparkonce.produce import dead_letters
from sparkonce.produce.states import ALLOWED, State
from sparkonce.stream import formats, kafka_settings
from sparkonce.stream import settings as common
from sparkonce.stream.kafka_settings import COLUMNS, KafkaSettings
from sparkonce.stream.ledger import Entry
from sparkonce.stream.metrics import MetricsListener
from sparkonce.stream.steps import ORDERS, Sink

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PRODUCER = ROOT / "docs" / "producer.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
SPARK = ROOT / "docs" / "spark.md"
DELIVER = ROOT / "docs" / "deliver.md"
TABLES = ("duckdb", "postgres", "delta")
"""Formats that are tables."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


def section(page: Path, title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page.read_text(), re.M | re.S)
    assert found, f"{page.name} has no section {title!r}"
    return found[1]


def cells(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without heads and rulers."""
    lines = [line.strip("| \n").split(" | ") for line in text.splitlines() if line[:1] == "|"]
    rulers = [at for at, line in enumerate(lines) if line[0].startswith("---")]
    return [line for at, line in enumerate(lines) if at not in rulers and at + 1 not in rulers]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_the_pages_compiles(page: Path) -> None:
    for number, block in enumerate(blocks(page, "python")):
        compile(block, f"{page.name}, block {number}", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Those within the repository; what others have on the web may be away for a day."""
    for target in re.findall(r"\]\((?!https://)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["README.md", "docs/faults.md"])
def test_examples_that_bring_their_own_kafka_run(page: str) -> None:
    whole = [block for block in blocks(ROOT / page, "python") if "LocalKafka(" in block]
    assert whole
    for block in whole:
        said = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
        assert said.returncode == 0, said.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_tables_are_filled(tmp_path: Path) -> None:
    """The blocks of that section are one program."""
    found = re.findall(r"^```python\n(.*?)^```$", section(DELIVER, "A first table"), re.M | re.S)
    program = "\n".join(found)
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.split("\n") == ["(100,)", "(100,)", "100", ""]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_examples_are_taken(page: Path) -> None:
    for block in blocks(page, "python"):
        for form, options in examples(block):
            if form == "sparkonce_table":
                SourceSettings.parse(options)
            elif form != "sqlite":  # the page makes that one itself
                formats.find(form)(options, "a query")


def examples(code: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Writers and readers in a piece of code: their format, and what `option` gives them."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    inner = {node.func.value for node in calls if isinstance(node.func, ast.Attribute)}
    for node in (node for node in calls if node not in inner):
        form, options, at = None, {}, node
        while isinstance(at, ast.Call) and isinstance(at.func, ast.Attribute):
            if at.func.attr == "format":
                form = ast.literal_eval(at.args[0])
            elif at.func.attr == "option":
                name, value = ast.literal_eval(at.args[0]), at.args[1]
                is_known = isinstance(value, ast.Constant)
                options[name] = str(value.value) if is_known else _ONLY_A_RUN_TELLS.get(name, "x")
            at = at.func.value
        if form is not None:
            yield form, options


_ONLY_A_RUN_TELLS = {"url": "postgresql://host/shop", "kafka.bootstrap.servers": "host:9092"}


def test_every_setting_is_listed_with_its_default() -> None:
    listed = {row[0].strip("`"): row[1].strip("`") for row in cells(section(PRODUCER, "Settings"))}
    defaults = {field.name: field.default for field in fields(ProducerOptions)}
    assert listed == {name: _shown(defaults[_FIELD[name]]) for name in _READERS}


def _shown(default: object) -> str:
    if default is MISSING:
        return "needed"
    if default is None:
        return "not set"
    if isinstance(default, Codec):
        return default.name.lower()
    if default == -1:  # only acks has it
        return "all"
    return str(default).lower()


def test_the_states_are_drawn_as_the_table_has_them() -> None:
    (drawn,) = blocks(PRODUCER, "mermaid")
    expected = _diagram()
    assert drawn == expected, f"the diagram should be:\n{expected}"


def _diagram() -> str:
    """All steps but those to CLOSED, which every state has."""
    lines = [f"[*] --> {State.UNINITIALIZED.name}", f"[*] --> {State.JOINED.name}"]
    for state in State:
        targets = [target for target in _ORDER if target in ALLOWED[state]]
        lines += [f"{state.name} --> {target.name}" for target in targets]
    return "stateDiagram-v2\n" + "".join(f"    {line}\n" for line in lines)


_ORDER = [state for state in State if state is not State.CLOSED]


def test_what_a_guarantee_may_do_and_what_it_sets() -> None:
    may: dict[str, tuple[bool, bool]] = {}
    sets: dict[str, dict[str, str]] = {}
    for row in cells(section(GUARANTEES, "Four promises")):
        name = row[0].strip("`")
        if len(row) == 4:
            may[name] = (row[2] == "yes", row[3] == "yes")
        else:
            sets[name] = dict(re.findall(r"`([\w.]+)=(\w+)`", row[1]))
    assert may == {each.value: (each.may_lose, each.may_repeat) for each in Guarantee}
    assert sets == {each.value: dict(NEEDS[each]) for each in Guarantee}


@pytest.mark.parametrize(
    ("page", "title"),
    [(GUARANTEES, "Orders of the steps"), (SPARK, "Guarantees"), (DELIVER, "Guarantees")],
)
def test_a_guarantee_is_the_order_of_steps_that_is_told(page: Path, title: str) -> None:
    told = {row[0].strip("`"): row[1].split(", ") for row in cells(section(page, title))}
    assert told == {each.value: [step.value for step in ORDERS[each]] for each in Guarantee}


def test_every_option_of_the_spark_sink_is_listed_with_its_default() -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in cells(section(SPARK, "Options"))}
    own = {name for name in told if not name.startswith("kafka.")}
    assert own == {*common.OPTIONS, *kafka_settings.OPTIONS}
    plain = {"kafka.bootstrap.servers": "host:1", "kafka.transactional.id": "payments"}
    settings = KafkaSettings.parse(plain, None)
    assert {
        "guarantee": settings.guarantee.value,
        "batchAttempts": str(settings.attempts_max),
        "ledgerLost": settings.ledger_lost,
        "lostState": settings.lost_state,
        "driverPort": str(settings.driver_port),
        "kafka.transaction.timeout.ms": settings.owner["transaction.timeout.ms"],
    }.items() <= told.items()


def test_every_option_of_a_table_is_listed_with_its_default() -> None:
    rows = cells(section(DELIVER, "Options"))
    own = [row for row in rows if not row[0].endswith("…`")]
    told = {row[0].strip("`"): TABLES if row[2] == "all" else row[2].split(", ") for row in own}
    taken = {form: _options_of(form) for form in TABLES}
    for form in TABLES:
        assert {name for name, forms in told.items() if form in forms} == taken[form], form
    defaults = {row[0].strip("`"): row[1].strip("`") for row in own}
    needed = {"duckdb": {"path", "dbtable"}, "postgres": {"url", "dbtable"}, "delta": {"path"}}
    for form, names_ in needed.items():
        assert names_ == {name for name in taken[form] if defaults[name] == "needed"}
        settings = formats.find(form)(dict.fromkeys(names_, "x"), "the query's name").settings
        assert isinstance(settings, deliver.TableSettings)
        assert {
            "guarantee": settings.guarantee.value,
            "batchAttempts": str(settings.attempts_max),
            "ledgerLost": settings.ledger_lost,
            "lostState": settings.lost_state,
            "pipeline": settings.pipeline,
            "writeMode": "upsert" if settings.upserts else "append",
            "createTable": str(settings.creates).lower(),
            "ledgerTable": settings.ledger_table,
        }.items() <= defaults.items()
        absent = (settings.delete_column, settings.sequence_by, settings.dead_letter_table)
        assert (absent, settings.keys, settings.run_id) == ((None, None, None), (), None)
        for name in names_:
            with pytest.raises(ConfigError, match=f"{name} is missing"):
                formats.find(form)(dict.fromkeys(names_ - {name}, "x"), "q")


def _options_of(form: str) -> set[str]:
    """What a format says it knows, without those that it refuses in words of its own."""
    with pytest.raises(ConfigError) as refused:
        formats.find(form)({"no.such": "x"}, "q")
    known = re.search(r"known are (.*?)(?:, and others|$)", str(refused.value))
    assert known
    return {name for name in known[1].split(", ") if not _is_refused(form, name)}


def _is_refused(form: str, name: str) -> bool:
    try:
        formats.find(form)({name: "x"}, "q")
    except ConfigError as error:
        return f"{name} is no option of" in str(error)
    return False


def test_what_a_table_and_its_ledger_have_is_told() -> None:
    ledger = names(section(DELIVER, "What is in a transaction"))
    assert ledger == {name for name, _ in ledger_row.COLUMNS}
    with duckdb.connect() as connection:
        connection.execute(sql.create_dead_letters("dead"))
        columns = {name for name, *_ in connection.execute("DESCRIBE dead").fetchall()}
    assert names(section(DELIVER, "Dead letters")) == columns


_TYPES: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "smallint": t.ShortType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "decimal(38,10)": t.DecimalType(38, 10),
    "string": t.StringType(),
    "char(3)": t.CharType(3),
    "varchar(3)": t.VarcharType(3),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "interval day to second": t.DayTimeIntervalType(),
    "array<int>": t.ArrayType(t.IntegerType()),
    "map<string,int>": t.MapType(t.StringType(), t.IntegerType()),
    "struct<a:int>": t.StructType([t.StructField("a", t.IntegerType())]),
    "variant": t.VariantType(),
    "interval year to month": t.YearMonthIntervalType(),
    "interval": t.CalendarIntervalType(),
    "time(6)": t.TimeType(6),
    "void": t.NullType(),
}


def test_types_become_what_is_told() -> None:
    told = {row[0].strip("`"): [word.strip("`") for word in row[1:]] for row in _type_rows()}
    assert told.keys() == _TYPES.keys()
    for name, kind in _TYPES.items():
        words = []
        for type_of in (duckdb_type, postgres_type, delta_type):
            try:
                words.append(type_of(kind))
            except ConfigError:
                words.append("refused")
        assert (kind.simpleString(), told[name]) == (name, words)


def _type_rows() -> list[list[str]]:
    return cells(section(DELIVER, "Types"))


def test_every_verb_of_a_store_is_told() -> None:
    verbs = {
        f"{part.__name__}.{name}"
        for part in (Store, Stage, Transaction)
        for name in vars(part)
        if not name.startswith("_") or name == "__call__"
    }
    told = names(section(DELIVER, "Adding a sink of your own"))
    assert {name for name in told if "." in name} == verbs


def test_what_the_spark_sink_writes_and_keeps_is_told() -> None:
    assert names(section(SPARK, "Columns")) == set(COLUMNS)
    # The layout is what `sparkonce` says.
    entry = {"sparkonce"} | {field.name for field in fields(Entry)} - {"layout"}
    assert names(section(SPARK, "What is in a transaction")) == entry
    metrics = CollectorRegistry()
    MetricsListener(metrics)
    assert {name.removesuffix("_total") for name in names(section(SPARK, "Watching it"))} == {
        family.name for family in metrics.collect()
    }


def test_every_verb_of_a_sink_is_told() -> None:
    verbs = {name for name in vars(Sink) if not name.startswith("_")}
    assert names(section(SPARK, "Adding a sink")) == verbs


@pytest.mark.parametrize("page", [PRODUCER, SPARK], ids=lambda page: page.name)
def test_every_header_of_a_dead_letter_is_told(page: Path) -> None:
    told = {name for name in names(section(page, "Dead letters")) if name.startswith("sparkonce.")}
    single = {dead_letters.REASON, dead_letters.TOPIC}
    lengths = {dead_letters.VALUE_BYTES, dead_letters.KEY_BYTES}
    source = {dead_letters.SOURCE + field for field in SOURCE_FIELDS}
    assert told == single | lengths | source


def names(text: str) -> set[str]:
    """What stands in backquotes in the first column of the tables in a text."""
    return {name for row in cells(text) for name in re.findall(r"`([\w.]+)`", row[0])}
