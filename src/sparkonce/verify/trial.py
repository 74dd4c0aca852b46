"""One trial: a pipeline, a guarantee and a schedule, with topics of its own.

`Trial` is what was decided beforehand. `Course` is a trial on its way: its input, its proxy, its
story, and in the end its history, made from what other clients read.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from confluent_kafka import Message, Producer

from sparkonce.errors import SparkonceError
from sparkonce.guarantees import Guarantee
from sparkonce.local import LocalKafka, LocalPostgres
from sparkonce.produce.identity import Partition
from sparkonce.verify.commits import CommitProxy
from sparkonce.verify.contract import Job, Pipeline, Record, Row
from sparkonce.verify.history import History, Markings, Moment, Reading, Seen, Sent
from sparkonce.verify.network import DelayResponse, Fault, FaultProxy
from sparkonce.verify.outcome import Defect, Happening
from sparkonce.verify.schedule import AtCommit, Checkpoint, KillSent, Outlast, Schedule

PARTITIONS: Final = 2
_KEYS: Final = 4
_OUTLASTED_MS: Final = 5_000
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
    records: int = 40
    per_batch: int = 20
    partitions: int = PARTITIONS
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
        return self.title or self.pipeline.name


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
        self._sent: dict[tuple[int, int], Sent] = {}
        self._moments: list[Moment] = []
        self._units: dict[str, frozenset[str]] = {}
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
        self._commits: CommitProxy | None = None
        if postgres is not None and "postgres" in trial.pipeline.services:
            planned = {each.nth: each for each in trial.schedule if isinstance(each, AtCommit)}
            self._commits = CommitProxy(
                postgres.port, planned, lambda element: at_commit(element, self)
            )

    # -- its life --------------------------------------------------------------------------------

    def open(self) -> None:
        for topic in self._topics:
            self._kafka.create_topic(topic, self.trial.partitions)
        self._place.mkdir(parents=True)
        self.proxy.__enter__()
        if self._commits:
            self._commits.start()
        self._fill()

    def close(self) -> None:
        self.proxy.stop()
        if self._commits:
            self._commits.stop()
        for topic in self._topics:
            self._kafka.delete_topic(topic)
        shutil.rmtree(self._folders)

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
        settings = {**_IMPATIENT, **self.trial.settings}
        if any(isinstance(each, Outlast) for each in self.trial.schedule):
            settings["transaction.timeout.ms"] = str(_OUTLASTED_MS)
        return Job(
            name=self.name,
            bootstrap_servers=self.proxy.bootstrap_servers,
            input_topic=self.input_topic,
            output_topics=self.output_topics,
            folder=str(self.checkpoint),
            guarantee=self.trial.guarantee.value,
            per_batch=self.trial.per_batch,
            settings=settings,
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
        """What the schedule has for the folder after this life."""
        for each in self.trial.schedule:
            if not isinstance(each, Checkpoint) or each.after_life != life:
                continue
            self.tell("checkpoint", each.action)
            if each.action == "lose":
                self._copies += 1
            elif each.action == "copy":
                former = self.checkpoint
                self._copies += 1
                shutil.copytree(former, self.checkpoint)
            else:
                self._forget_commit()

    def tell(self, kind: str, text: str) -> None:
        self._story.append(self._happening(time.monotonic(), kind, text))

    def hear(self, said: Iterable[tuple[float, str]]) -> None:
        """What its process said of it, by the monotonic clock: for the story, should it break."""
        self._heard += [self._happening(at_s, "log", line[:_LINE_CHARS_MAX]) for at_s, line in said]

    def was_sent(self) -> bool:
        """Whether the request that the process is to die behind has reached its broker."""
        return self.sent_fault is not None and self.proxy.fired(self.sent_fault) > 0

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
        seen = {self.trial.pipeline.identity(record) for record in visible}
        self._moments.append(Moment(name, frozenset(done), frozenset(seen)))

    def story(self, *, in_full: bool) -> tuple[Happening, ...]:
        """With what its process said of it, if in full."""
        fired = [
            self._happening(event.at_s, "fault", repr(event.fault))
            for event in self.proxy.log
            if event.did == "fired"
        ]
        heard = self._heard if in_full else ()
        return tuple(sorted([*self._story, *fired, *heard], key=lambda each: each.at_s))

    def history(
        self,
        readings: Mapping[str, Iterable[Record]],
        live: Mapping[str, Iterable[Record]],
        left_open: Iterable[Partition],
        markings: Markings | None,
    ) -> History:
        return History(
            sent=tuple(self._sent.values()),
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
            own.identity(record), record.topic, record.partition, record.offset, own.running(record)
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
            self._fill_topic()
            return
        rows = [
            Row(number, f"k{number % _KEYS}", f"t{self.trial.number}-{number:06}")
            for number in range(self.trial.records)
        ]
        provide(self.own_job(), rows)
        self._sent = {(0, row.number): Sent(row.identity, "", ()) for row in rows}

    def _fill_topic(self) -> None:
        """Numbered records, by confluent-kafka; where each came to lie is its own report."""
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap_servers, "acks": "all"})
        failures: list[str] = []

        def landed(error: object, message: Message) -> None:
            if error is not None:
                failures.append(str(error))
                return
            key, value = message.key(), message.value()
            partition, offset = message.partition(), message.offset()
            assert key is not None and value is not None
            assert partition is not None and offset is not None
            self._sent[partition, offset] = Sent(
                value.decode(),
                key.decode() if self.trial.pipeline.ordered else "",
                self.output_topics if len(self.output_topics) > 1 else (),
            )

        for number in range(self.trial.records):
            identity = f"t{self.trial.number}-{number:06}"
            producer.produce(
                self.input_topic, identity, key=f"k{number % _KEYS}", on_delivery=landed
            )
        if producer.flush(60) or failures:
            raise SparkonceError(f"the input of {self.name} could not be written: {failures[:3]}")
        self._sent = dict(sorted(self._sent.items()))

    def _forget_commit(self) -> None:
        commits = self.checkpoint / "commits"
        numbers = [int(each.name) for each in commits.glob("*") if each.name.isdigit()]
        if numbers:
            last = commits / str(max(numbers))
            last.unlink()
            last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
