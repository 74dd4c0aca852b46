"""At the end of a round: what is there is read by several clients, checked and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkonce.errors import SparkonceError
from sparkonce.local import LocalKafka
from sparkonce.verify import readers
from sparkonce.verify.checker import check, interference
from sparkonce.verify.contract import Record
from sparkonce.verify.history import History, Markings
from sparkonce.verify.outcome import Finding, Outcome, Verdict
from sparkonce.verify.promises import judge, judge_control
from sparkonce.verify.schedule import to_text
from sparkonce.verify.trial import Course, trial_number


def outcomes(
    kafka: LocalKafka,
    courses: Mapping[int, Course],
    during: Sequence[Record],
    failures: Mapping[int, str],
    lasted_s: float,
) -> list[Outcome]:
    """One for each trial. `during` was read while pipelines ran; `failures` has, by number, why a
    trial never came to its end."""
    found = _Found(kafka, list(courses.values()), during)
    return [
        failed(course, failures[number], lasted_s)
        if number in failures
        else _judged(course, check(found.history(course)), lasted_s)
        for number, course in courses.items()
    ]


def failed(course: Course, why: str, lasted_s: float) -> Outcome:
    """Nothing is known of its output. What it did to others is, and that breaks a promise."""
    findings = tuple(interference(course.interference))
    verdict = Verdict.BROKEN if findings and not course.trial.must_show else Verdict.FAILED
    return _outcome(course, verdict, findings, lasted_s, why)


class _Found:
    """What all clients read, read once for all trials."""

    def __init__(
        self, kafka: LocalKafka, courses: Sequence[Course], during: Sequence[Record]
    ) -> None:
        servers = kafka.bootstrap_servers
        topics = [topic for course in courses for topic in course.output_topics]
        claimed = [course for course in courses if course.claims_transactions]
        self._during = during
        self._open = readers.left_open(servers, topics) if topics else []
        self._after = readers.read(servers, topics) if topics else []
        self._by_java = _read_with_java(kafka, courses, self._after)
        self._marks = readers.markings(
            kafka, [topic for course in claimed for topic in course.output_topics]
        )

    def history(self, course: Course) -> History:
        if (rows := course.collect()) is not None:
            return course.history({"the database's own client, after": rows}, {}, (), None)
        own = set(course.output_topics)
        after = {"confluent-kafka, after": [each for each in self._after if each.topic in own]}
        if (by_java := self._by_java.get(course.trial.number)) is not None:
            after["Java, after"] = by_java
        marked = [self._marks[topic] for topic in course.output_topics if topic in self._marks]
        return course.history(
            after,
            {"confluent-kafka, during": [each for each in self._during if each.topic in own]},
            [part for part in self._open if part[0] in own],
            Markings.sum(marked) if marked else None,
        )


def _read_with_java(
    kafka: LocalKafka, courses: Sequence[Course], seen: Sequence[Record]
) -> dict[int, list[Record]]:
    """By trial; left out where the values don't tell whose they are."""
    found: dict[int, list[Record]] = {}
    for index in range(max(len(course.output_topics) for course in courses) if seen else 0):
        topics = {
            course.trial.number: course.output_topics[index]
            for course in courses
            if len(course.output_topics) > index
        }
        told = [each for each in seen if each.topic in topics.values()]
        if any(trial_number(each.value) not in topics for each in told):
            return {}
        read = readers.read_with_java(kafka, list(topics.values()), len(told))
        for number in topics:
            found.setdefault(number, [])
        for each in read:
            owner = trial_number(each.value)
            if owner is None or owner not in topics:
                raise SparkonceError(f"Kafka's consumer read {each.value!r}: whose is it?")
            found[owner].append(
                Record(topics[owner], each.partition, each.offset, each.key, each.value)
            )
    return found


def _judged(course: Course, findings: tuple[Finding, ...], lasted_s: float) -> Outcome:
    trial = course.trial
    if trial.must_show:
        verdict = judge_control(trial.must_show, findings)
    else:
        verdict = judge(trial.guarantee, findings)
    return _outcome(course, verdict, findings, lasted_s)


def _outcome(
    course: Course,
    verdict: Verdict,
    findings: tuple[Finding, ...],
    lasted_s: float,
    error: str = "",
) -> Outcome:
    trial = course.trial
    return Outcome(
        number=trial.number,
        seed=trial.seed,
        pipeline=trial.name,
        guarantee=trial.guarantee.value,
        family=trial.family,
        schedule=to_text(trial.schedule),
        verdict=verdict,
        findings=findings,
        records=trial.records,
        duration_s=lasted_s,
        story=course.story(in_full=verdict in (Verdict.BROKEN, Verdict.FAILED)),
        error=error,
        control=bool(trial.must_show),
        must_show=trial.must_show,
        fired=course.fired(),
        workload=repr(trial.workload),
        cluster=trial.cluster.name,
    )
