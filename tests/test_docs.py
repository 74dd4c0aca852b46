"""What the documents say is what the code has: settings, states, promises, links, examples."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from sparkonce.encode import Codec
from sparkonce.encode.columns import SOURCE_FIELDS
from sparkonce.guarantees import NEEDS, Guarantee
from sparkonce.options import _FIELD, _READERS, ProducerOptions
from sparkonce.produce import dead_letters
from sparkonce.produce.states import ALLOWED, State
from sparkonce.stream.ledger import Entry
from sparkonce.stream.metrics import MetricsListener
from sparkonce.stream.settings import _OWN, COLUMNS, StreamSettings
from sparkonce.stream.steps import ORDERS, Sink

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PRODUCER = ROOT / "docs" / "producer.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
SPARK = ROOT / "docs" / "spark.md"


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
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ["README.md", "docs/faults.md"])
def test_examples_that_bring_their_own_kafka_run(page: str) -> None:
    whole = [block for block in blocks(ROOT / page, "python") if "LocalKafka(" in block]
    assert whole
    for block in whole:
        said = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
        assert said.returncode == 0, said.stderr


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
    ("page", "title"), [(GUARANTEES, "Orders of the steps"), (SPARK, "Guarantees")]
)
def test_a_guarantee_is_the_order_of_steps_that_is_told(page: Path, title: str) -> None:
    told = {row[0].strip("`"): row[1].split(", ") for row in cells(section(page, title))}
    assert told == {each.value: [step.value for step in ORDERS[each]] for each in Guarantee}


def test_every_option_of_the_spark_sink_is_listed_with_its_default() -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in cells(section(SPARK, "Options"))}
    assert {name for name in told if not name.startswith("kafka.")} == set(_OWN.values())
    plain = {"kafka.bootstrap.servers": "host:1", "kafka.transactional.id": "payments"}
    settings = StreamSettings.parse(plain, None)
    assert {
        "guarantee": settings.guarantee.value,
        "batchAttempts": str(settings.attempts_max),
        "ledgerLost": settings.ledger_lost,
        "lostState": settings.lost_state,
        "driverPort": str(settings.driver_port),
        "kafka.transaction.timeout.ms": settings.owner["transaction.timeout.ms"],
    }.items() <= told.items()


def test_what_the_spark_sink_writes_and_keeps_is_told() -> None:
    assert names(section(SPARK, "Columns")) == set(COLUMNS)
    entry = {"sparkonce"} | {field.name for field in fields(Entry)}
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
