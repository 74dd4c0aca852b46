"""What a pipeline under test is given, and what the verifier has to know of it.

A pipeline is a Python file (or module) with a function `run(job)`; the names below tell the rest,
and all of them may be left out. The verifier writes numbered records into `job.input_topic`, runs
the pipeline in a process of its own that it kills and restarts, and reads `job.output_topics`.

    run(job)            works until all input is processed, or until it is killed
    identity(record)    which input an output record comes from, as text; default: its value
    running(record)     the state before and after, for stateful steps; default: none
    units(job)          which input each transaction holds, as it was planned; default: not known
    GUARANTEES          what it can be asked for; default: exactly_once alone
    OUTPUTS             output topics; each input is due once in each of them; default: 1
    due_in(identity)    in which of them instead, counted from 0; default: in each
    POINTS              what it tells `job.observe` on its way; default: nothing
    FAMILIES            of faults that it has trials in, of those that fit; default: all
    ENDS                whether `run` returns when the input is used up; default: True
    BATCHED             whether it works in batches of about `job.per_batch`; default: True
    SPARK               whether it wants the process's SparkSession; default: False
    SHARES              whether several jobs may run side by side in a process; default: False
    ORDERED             whether records with the same key keep their order; default: True
    BY_KEY              whether it leaves the partition to the key, which has one then, in each
                        transaction and topic; default: False
    MARKED              whether it writes in Kafka transactions; default: under exactly_once

Where input or output are not topics, these say so; they run in the verifier, not in the pipeline:

    provide(job, rows)  puts the input where the pipeline reads it
    collect(job)        what is visible in the output, by the output's own client
    progress(job)       how far the pipeline says it is: by input partition, the next offset
    SERVICES            what must be there: "postgres"; its URL is then in `job.services`
    HOLDS               points at which a stopped process keeps every other one out; default: none
    ALTERS              whether it alters tables itself, which waits for a dump; default: False
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from sparkonce.errors import SparkonceError
from sparkonce.guarantees import Guarantee
from sparkonce.verify.history import Running

POINTS = (
    "fence",
    "open",
    "produce:first",
    "produce:last",
    "offsets",
    "end",
    "committed",
    "end:answered",
    "spark-commit",
)
"""The steps of the protocol at which our own pipelines can be stopped, in their order. At
`committed` the batch is decided, and what has decided it has not come back to its driver yet."""
SHUFFLED = "shuffled"
"""Told by each task between two shuffles, when it has read all its rows."""
BETWEEN_SHUFFLES = 4
"""Tasks of the pipeline that shuffles twice; each tells that it has read its rows."""
BEHIND_SHUFFLES = 2
"""Tasks of it that write."""


class ContractError(SparkonceError):
    """A pipeline that can't be verified as it is written."""


Unit = Mapping[int, tuple[int, int]]
"""What a transaction holds: by input partition, the first offset and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Record:
    """An output record, as a reader saw it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Row:
    """An input row, for pipelines that read something else than a topic."""

    number: int
    key: str
    identity: str


def _unseen(point: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a pipeline is told: where from, where to, and what to promise."""

    name: str
    """Its own: for a transactional id, a consumer group, an application id."""
    bootstrap_servers: str
    """Through the fault proxy: no other address may be used."""
    input_topic: str
    output_topics: tuple[str, ...]
    folder: str
    """Survives its process: for a checkpoint, or whatever it has to keep. It may get lost."""
    place: str = ""
    """A folder that nothing happens to, for input and output that are files."""
    services: Mapping[str, str] = field(default_factory=dict)
    """URLs of what `SERVICES` asked for: for the pipeline through faults, for us directly."""
    guarantee: str = Guarantee.EXACTLY_ONCE.value
    per_batch: int = 20
    """About how many records to process at once, so that there are several batches."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the Kafka client, under Kafka's own names: time-outs that suit the faults."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Of the Spark session: where state is kept."""
    observe: Callable[[str], None] = _unseen
    """To be told of points on the way, in the driver or on executors: it can be pickled."""

    @property
    def output_topic(self) -> str:
        return self.output_topics[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline as the verifier knows it."""

    name: str
    program: str
    """A module's name, or the path of a file."""
    run: Callable[[Job], None]
    identity: Callable[[Record], str]
    running: Callable[[Record], Running | None]
    units: Callable[[Job], Mapping[str, Unit]]
    guarantees: tuple[Guarantee, ...]
    outputs: int
    due_in: Callable[[str], Sequence[int]] | None
    batched: bool
    points: tuple[str, ...]
    families: tuple[str, ...] | None
    ends: bool
    spark: bool
    shares: bool
    ordered: bool
    by_key: bool
    marked: bool | None
    provide: Callable[[Job, Sequence[Row]], None] | None
    collect: Callable[[Job], Sequence[Record]] | None
    progress: Callable[[Job], Mapping[int, int]] | None
    services: tuple[str, ...]
    holds: tuple[str, ...]
    alters: bool

    @classmethod
    def load(cls, program: str) -> Pipeline:
        """From a file (a path that ends in .py) or an installed module."""
        module = _module(program)
        run = getattr(module, "run", None)
        if not callable(run):
            raise ContractError(
                f"{program} has no function run(job): that is where the verifier starts the "
                "pipeline. See docs/verify.md for the whole contract, which is short"
            )
        own: dict[str, Any] = vars(module)
        try:
            guarantees = tuple(Guarantee(each) for each in own.get("GUARANTEES", ["exactly_once"]))
        except ValueError as error:
            known = ", ".join(each.value for each in Guarantee)
            raise ContractError(f"{program}: GUARANTEES: {error}; there are {known}") from error
        return cls(
            name=own.get("NAME", module.__name__.rpartition(".")[2]),
            program=program,
            run=run,
            identity=own.get("identity", _value),
            running=own.get("running", _stateless),
            units=own.get("units", _unplanned),
            guarantees=guarantees,
            outputs=int(own.get("OUTPUTS", 1)),
            due_in=own.get("due_in"),
            batched=bool(own.get("BATCHED", True)),
            points=tuple(own.get("POINTS", ())),
            families=tuple(own["FAMILIES"]) if "FAMILIES" in own else None,
            ends=bool(own.get("ENDS", True)),
            spark=bool(own.get("SPARK", False)),
            shares=bool(own.get("SHARES", False)),
            ordered=bool(own.get("ORDERED", True)),
            by_key=bool(own.get("BY_KEY", False)),
            marked=own.get("MARKED"),
            provide=own.get("provide"),
            collect=own.get("collect"),
            progress=own.get("progress"),
            services=tuple(own.get("SERVICES", ())),
            holds=tuple(own.get("HOLDS", ())),
            alters=bool(own.get("ALTERS", False)),
        )

    @property
    def is_stateful(self) -> bool:
        return self.running is not _stateless

    @property
    def writes_kafka(self) -> bool:
        return self.collect is None

    def writes_transactions(self, guarantee: Guarantee) -> bool:
        """Of Kafka's."""
        if not self.writes_kafka:
            return False
        if self.marked is not None:
            return self.marked
        return guarantee is Guarantee.EXACTLY_ONCE


def _module(program: str) -> ModuleType:
    if not program.endswith(".py"):
        return importlib.import_module(program)
    path = Path(program)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ContractError(f"there is no file {program}: give the path of the pipeline's file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _value(record: Record) -> str:
    return (record.value or b"").decode(errors="replace")


def _stateless(record: Record) -> Running | None:
    return None


def _unplanned(job: Job) -> Mapping[str, Unit]:
    return {}
