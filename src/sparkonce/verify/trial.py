"""One trial: a pipeline, a guarantee and a schedule, with topics of its own.

`Trial` is what was decided beforehand. `Course` is a trial on its way: its input, its proxy, its
story, and in the end its history, made from what other clients read.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sparkonce.guarantees import Guarantee
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.produce.identity import Partition
from sparkonce.verify.checkpoints import forget_last_batch, forget_last_commit
from sparkonce.verify.clusters import USUAL, Cluster
from sparkonce.verify.commits import CommitProxy
from sparkonce.verify.contract import Job, Pipeline, Record, Row
from sparkonce.verify.filling import Filling, Landed
from sparkonce.verify.history import History, Markings, Moment, Reading, Seen, Sent
from sparkonce.verify.identity import short
from sparkonce.verify.network import DelayResponse, Fault, FaultProxy
from sparkonce.verify.outcome import Defect, Happening
from sparkonce.verify.readers import delete_group
from sparkonce.verify.schedule import (
    Arm,
    AtCommit,
    AwaitSnapshot,
    Checkpoint,
    Element,
    KillSent,
    LoseLedger,
    MoreInput,
    Pause,
    Schedule,
    settings_for,
)
from sparkonce.verify.workload import BY_VERSION, Workload

_NEVER_S: Final = 3600.0
_IMPATIENT: Final = {"request.timeout.ms": "3000", "delivery.timeout.ms": "60000"}
"""What is lost without a word is asked for again soon."""
_HEARD_MAX: Final = 60
_LINE_CHARS_MAX: Final = 500
_IDENTITY: Final = re.compile(rb"t(\d+)-\d{6}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    number: int = 0
    seed: int = 0
    """Both are given by the campaign."""
    pipeline: Pipeline
    guarantee: Guarantee
    family: str
    schedule: Schedule
    workload: Workload = field(default_factory=Workload)
    cluster: Cluster = USUAL
    settings: Mapping[str, str] = field(default_factory=dict)
    must_show: tuple[Defect, ...] = ()
    """For a control."""
    title: str = ""
    """For a control: what it is, in place of the pipeline's name."""
    shares: bool = True
    """Whether others may run beside it: not while all brokers but one stand still."""
    master: str = ""
    """Where Spark runs; "": in one process."""

    @property
    def name(self) -> str:
        own = self.title or self.pipeline.name
        return f"{own}, {self.cluster.name}" if self.cluster.name else own

    @property
    def more(self) -> int:
        """Records that are written when all others are processed."""
        return sum(each.records for each in self.schedule if isinstance(each, MoreInput))

    @property
    def awaits_snapshot(self) -> frozenset[int]:
        """The lives in which Spark's maintenance is waited for."""
        return frozenset(each.life for each in self.schedule if isinstance(each, AwaitSnapshot))

    def is_maintained(self, life: int) -> bool:
        """Whether Spark's maintenance of state runs all the time then, and not once a minute."""
        return self.workload.maintained or life in self.awaits_snapshot

    @property
    def records(self) -> int:
        return self.workload.records + self.more


def trial_number(value: bytes | None) -> int | None:
    """Which trial an output record belongs to, by the identity that is somewhere in its value."""
    found = _IDENTITY.search(value or b"")
    return int(found[1]) if found else None


class Course:
    """Made and ended by the round, in its thread; `tell` may come from any."""

    def __init__(
        self,
        trial: Trial,
        kafka: LocalKafka,
        folder: Path,
        postgres: LocalPostgres | None = None,
        at_commit: Callable[[AtCommit, Course], None] = lambda element, course: None,
    ) -> None:
        self.trial = trial
        self._kafka = kafka
        self._postgres = postgres
        self.name = f"verify-t{trial.number}"
        self._folders = folder / self.name
        self._copies = 0
        self._started_s = time.monotonic()
        self._story: list[Happening] = []
        self._heard: deque[Happening] = deque(maxlen=_HEARD_MAX)
        self._happened: set[Element] = set()
        self._has_refused = False
        self._later: set[tuple[int, int]] = set()
        self._sent: dict[tuple[int, int], Sent] = {}
        self._moments: list[Moment] = []
        self._units: dict[str, frozenset[str]] = {}
        self._interference: list[str] = []
        self.input_topic = f"{self.name}-in"
        self.output_topics = tuple(
            f"{self.name}-out-{index}"
            for index in range(trial.pipeline.outputs if trial.pipeline.writes_kafka else 0)
        )
        self.sent_fault = self._delayed_answer()
        faults = [each for each in trial.schedule if isinstance(each, Fault)]
        if self.sent_fault:
            faults.append(self.sent_fault)
        self.proxy = FaultProxy(kafka.bootstrap_servers, faults=faults, seed=trial.seed)
        self._filling = Filling(
            kafka.bootstrap_servers, self.input_topic, trial.number, trial.workload
        )
        self._commits: CommitProxy | None = None
        if postgres is not None and "postgres" in trial.pipeline.services:
            planned = {each.nth: each for each in trial.schedule if isinstance(each, AtCommit)}
            self._commits = CommitProxy(
                postgres.port, planned, lambda element: at_commit(element, self)
            )

    # -- its life --------------------------------------------------------------------------------

    def open(self) -> None:
        for topic in self._topics:
            self._kafka.create_topic(topic, self.trial.workload.partitions)
        self._place.mkdir(parents=True)
        self.proxy.__enter__()
        if self._commits:
            self._commits.start()
        self._fill()

    def close(self) -> None:
        with ExitStack() as stack:  # whatever goes wrong with one of them, the others are closed
            stack.callback(shutil.rmtree, self._folders)
            for topic in self._topics:
                stack.callback(self._kafka.delete_topic, topic)
            if self._commits:
                stack.callback(self._commits.stop)
            stack.callback(self.proxy.stop)

    @property
    def _topics(self) -> tuple[str, ...]:
        """Those that are made; without an input topic it is a place between two steps."""
        return self.input_topic, *self.output_topics

    @property
    def _place(self) -> Path:
        return self._folders / "place"

    def stop_cutting(self) -> None:
        """What is left of the schedule has had its chance."""
        self.proxy.clear()
        if self._commits:
            self._commits.clear()

    def own_job(self) -> Job:
        """As the verifier's side of the pipeline needs it: past all faults."""
        services = {"postgres": self._postgres.url} if self._postgres else {}
        return replace(
            self.job(), bootstrap_servers=self._kafka.bootstrap_servers, services=services
        )

    def collect(self) -> list[Record] | None:
        """What is visible; None where it is in Kafka, and readers read it."""
        collect = self.trial.pipeline.collect
        return list(collect(self.own_job())) if collect else None

    def progress(self) -> Mapping[int, int] | None:
        """How far the pipeline says it is; None where that is its group's part."""
        pipeline = self.trial.pipeline
        if pipeline.progress is not None:
            return pipeline.progress(self.own_job())
        return {} if pipeline.provide is not None else None

    def job(self) -> Job:
        trial = self.trial
        for_faults = settings_for(trial.schedule)
        return Job(
            name=self.name,
            bootstrap_servers=self.proxy.bootstrap_servers,
            input_topic=self.input_topic,
            output_topics=self.output_topics,
            folder=str(self.checkpoint),
            guarantee=trial.guarantee.value,
            per_batch=trial.workload.per_batch,
            settings={**_IMPATIENT, **trial.workload.settings, **for_faults, **trial.settings},
            conf=trial.workload.conf,
            place=str(self._place),
            services=self._services(),
        )

    def _services(self) -> dict[str, str]:
        if self._commits is None or self._postgres is None:
            return {}
        return {"postgres": self._commits.through(self._postgres.url)}

    @property
    def claims_transactions(self) -> bool:
        return self.trial.pipeline.writes_transactions(self.trial.guarantee)

    @property
    def checkpoint(self) -> Path:
        return self._folders / f"checkpoint-{self._copies}"

    def disturb_checkpoint(self, life: int) -> None:
        """What the schedule has for the folder, and for the ledger, after this life."""
        for each in self.trial.schedule:
            if isinstance(each, LoseLedger) and each.after_life == life:
                delete_group(self._kafka.bootstrap_servers, self.name)
                self.tell("ledger", "lose")
                self.note(each)
            if not isinstance(each, Checkpoint) or each.after_life != life:
                continue
            self.tell("checkpoint", each.action)
            self.note(each)
            if each.action == "lose":
                self._copies += 1
            elif each.action == "former":
                self._copies -= 1
            elif each.action == "age":
                forget_last_batch(self.checkpoint)
            elif each.action == "copy":
                former = self.checkpoint
                self._copies += 1
                shutil.copytree(former, self.checkpoint)
            else:
                forget_last_commit(self.checkpoint)

    def fill_more(self) -> None:
        """What the schedule keeps back until all else is done."""
        for each in self.trial.schedule:
            if isinstance(each, MoreInput):
                landed = self._filling.more(each.records)
                self._later |= {(record.partition, record.offset) for record in landed}
                self._note_sent(landed)
                self.tell("life", f"{each.records} records more are in the input")
                self.note(each)

    @property
    def due(self) -> int:
        """Records that are in the input by now."""
        return len(self._sent)

    def must_refuse(self, life: int) -> bool:
        """Whether it has to refuse to go on: nobody knows any more what was written, or its state
        is gone."""
        return any(
            each.after_life == life - 1
            for each in self.trial.schedule
            if isinstance(each, LoseLedger)
            or (isinstance(each, Checkpoint) and self._must_be_refused(each))
        )

    def _must_be_refused(self, element: Checkpoint) -> bool:
        is_state_lost = element.action == "lose" and self.trial.pipeline.is_stateful
        return element.must_be_refused or is_state_lost

    @property
    def may_refuse(self) -> bool:
        """Whether a pipeline may refuse to go on with more input: as it has before; or over state
        that a zombie has written, where that can be noticed and not prevented."""
        was_paused = any(isinstance(each, Pause) for each in self.trial.schedule)
        return self._has_refused or (was_paused and self.trial.workload.store in BY_VERSION)

    @property
    def has_refused(self) -> bool:
        return self._has_refused

    def refuse(self, why: str) -> None:
        """It does not go on: what came last need not come out, and all else holds."""
        self.tell("end", f"it refused to go on: {why[:300]}")
        self._has_refused = True

    def arm(self, element: Arm) -> None:
        self.proxy.add(element.fault)
        self.note(element)

    def note(self, element: Element) -> None:
        """That it has happened."""
        self._happened.add(element)

    def has_happened(self, element: Element) -> bool:
        return element in self._happened

    def tell(self, kind: str, text: str) -> None:
        self._story.append(self._happening(time.monotonic(), kind, text))

    def interfere(self, what: str) -> None:
        """It stood in the way of others; may come from any thread."""
        self.tell("database", what)
        self._interference.append(what)

    @property
    def interference(self) -> tuple[str, ...]:
        return tuple(self._interference)

    def hear(self, said: Iterable[tuple[float, str]]) -> None:
        """What its process said of it, by the monotonic clock: for the story, should it break."""
        self._heard += [self._happening(at_s, "log", line[:_LINE_CHARS_MAX]) for at_s, line in said]

    def was_sent(self) -> bool:
        """Whether the request that the process is to die behind has reached its broker."""
        return self.sent_fault is not None and self.proxy.fired(self.sent_fault) > 0

    def fired(self) -> tuple[bool, ...]:
        """Element by element of its schedule, whether it came to pass."""
        hits = Counter[Fault]()
        return tuple(self._has_fired(each, hits) for each in self.trial.schedule)

    def _has_fired(self, element: Element, hits: Counter[Fault]) -> bool:
        """`hits` has how often faults before it in the schedule, and equal to it, were to hit."""
        if isinstance(element, KillSent):
            return self.was_sent()
        fault = element.fault if isinstance(element, Arm) else element
        if not isinstance(fault, Fault):
            return element in self._happened
        hits[fault] += 1
        return self.proxy.came_to_pass(fault) >= hits[fault]

    # -- what became of it -----------------------------------------------------------------------

    def add_moment(
        self, name: str, committed: Mapping[int, int], visible: Iterable[Record]
    ) -> None:
        """Progress and data as they were at a standstill; nothing, where there is no progress."""
        self._note_units()
        if all(offset < 0 for offset in committed.values()):
            return
        done = {
            sent.identity
            for (partition, offset), sent in self._sent.items()
            if offset < committed.get(partition, -1)
        }
        seen = {short(self.trial.pipeline.identity(record)) for record in visible}
        self._moments.append(Moment(name, frozenset(done), frozenset(seen)))

    def story(self, *, in_full: bool) -> tuple[Happening, ...]:
        """With what its process said of it, if in full."""
        heard = self._heard if in_full else ()
        return tuple(sorted([*self._story, *self._faults(), *heard], key=lambda each: each.at_s))

    def _faults(self) -> list[Happening]:
        """Those that fired, each at its first hit: one that lasts has dozens."""
        hits: dict[Fault, list[float]] = {}
        for event in self.proxy.log:
            if event.did == "fired" and event.fault is not None:
                hits.setdefault(event.fault, []).append(event.at_s)
        return [
            self._happening(
                at_s[0], "fault", repr(fault) + (f", {len(at_s)} times" if len(at_s) > 1 else "")
            )
            for fault, at_s in hits.items()
        ]

    def history(
        self,
        readings: Mapping[str, Iterable[Record]],
        live: Mapping[str, Iterable[Record]],
        left_open: Iterable[Partition],
        markings: Markings | None,
    ) -> History:
        return History(
            sent=tuple(
                replace(each, acknowledged=not (self._has_refused and place in self._later))
                for place, each in self._sent.items()
            ),
            readings=tuple(
                Reading(reader, tuple(self._seen(record) for record in records), is_live)
                for group, is_live in ((readings, False), (live, True))
                for reader, records in group.items()
            ),
            moments=tuple(self._moments),
            units=self._units if self._claims_units else {},
            left_open=tuple(left_open),
            markings=markings,
            transactional=self.claims_transactions,
            aborted=frozenset(map(short, self._filling.aborted)),
            interference=self.interference,
        )

    @property
    def _claims_units(self) -> bool:
        """Whether what belongs together is to be seen together."""
        in_one = self.trial.guarantee is Guarantee.EXACTLY_ONCE
        return self.claims_transactions or (in_one and not self.trial.pipeline.writes_kafka)

    def _note_units(self) -> None:
        """What its transactions were to hold, as long as the plan is there."""
        for name, unit in self.trial.pipeline.units(self.job()).items():
            self._units[name] = frozenset(
                sent.identity
                for (partition, offset), sent in self._sent.items()
                if partition in unit and unit[partition][0] <= offset < unit[partition][1]
            )

    def _seen(self, record: Record) -> Seen:
        own = self.trial.pipeline
        return Seen(
            short(own.identity(record)),
            record.topic,
            record.partition,
            record.offset,
            own.running(record),
            record.key if own.by_key else None,
        )

    # -- inside ----------------------------------------------------------------------------------

    def _happening(self, at_s: float, kind: str, text: str) -> Happening:
        """At a time of the monotonic clock."""
        return Happening(round(at_s - self._started_s, 3), kind, text)

    def _delayed_answer(self) -> Fault | None:
        """`KillSent` as the proxy does it: the answer is kept until the process is dead."""
        found = [each for each in self.trial.schedule if isinstance(each, KillSent)]
        if not found:
            return None
        return DelayResponse(found[0].api, nth=found[0].nth, seconds=_NEVER_S)

    def _fill(self) -> None:
        if (provide := self.trial.pipeline.provide) is None:
            self._note_sent(self._filling.first())
            return
        workload = self.trial.workload
        rows = [
            Row(number, f"k{number % workload.keys}", workload.identity(self.trial.number, number))
            for number in range(workload.records)
        ]
        provide(self.own_job(), rows)
        self._sent = {(0, row.number): Sent(short(row.identity), "", ()) for row in rows}

    def _note_sent(self, landed: Iterable[Landed]) -> None:
        for each in landed:
            self._sent[each.partition, each.offset] = Sent(
                short(each.value),
                # Between two partitions of the input there is no order.
                f"{each.key} of {each.partition}" if self.trial.pipeline.ordered else "",
                self._due_in(each.value),
            )

    def _due_in(self, identity: str) -> tuple[str, ...]:
        """Topics; nothing where one is enough."""
        if self.trial.pipeline.due_in is not None:
            return tuple(
                self.output_topics[index] for index in self.trial.pipeline.due_in(identity)
            )
        return self.output_topics if len(self.output_topics) > 1 else ()
