"""The stories of a page: a section for each cell of the matrix, with its trials.

What went wrong is told whole, and of the rest a few trials of each cell; all others are a line with
their seed. The whole is bounded, whatever the book holds: its JSON has everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sparkonce.verify.outcome import Finding, Outcome, Verdict
from sparkonce.verify.report.firing import Firing
from sparkonce.verify.report.grid import TONES, Cell, Row, found_words, place_of
from sparkonce.verify.report.markup import Html, counted, definitions, element, joined, span, text
from sparkonce.verify.report.shown import under_faults_s
from sparkonce.verify.report.timeline import MARKS_MAX, timeline

_OTHERS_MAX: Final = 3
_STORIES_BYTES_MAX: Final = 2_000_000
_SCHEDULE_MAX: Final = 60
_EXAMPLES_MAX: Final = 8
_LINE_CHARS_MAX: Final = 300
_ERROR_CHARS_MAX: Final = 4000
_BAD: Final = (Verdict.BROKEN, Verdict.WEAK, Verdict.FAILED)
_REFUSED: Final = (
    "The pipeline refused to go on over state that a zombie has written. What was left in its "
    "input counts as neither lost nor kept."
)

Place = tuple[Row, str]


def sections(
    outcomes: Sequence[Outcome], cells: Mapping[Place, Cell], ids: Mapping[Place, str]
) -> Html:
    """A section for each cell, in the order of `ids`."""
    trials: dict[Place, list[Outcome]] = {place: [] for place in ids}
    for outcome in outcomes:
        trials[place_of(outcome)].append(outcome)
    told = _told(list(trials.values()))
    return joined(
        _section(place, cells[place], trials[place], told, name) for place, name in ids.items()
    )


def _told(groups: Sequence[Sequence[Outcome]]) -> dict[int, Html]:
    """The trials that get their story, by number: the worst first, as long as there is room."""
    chosen = [outcome for group in groups for outcome in group if outcome.verdict in _BAD]
    chosen.sort(key=lambda outcome: (_BAD.index(outcome.verdict), outcome.number))
    for group in groups:
        others = [outcome for outcome in group if outcome.verdict not in _BAD]
        # Those in which something was found have more to tell.
        others.sort(key=lambda outcome: (not outcome.findings, outcome.number))
        chosen += others[:_OTHERS_MAX]
    told: dict[int, Html] = {}
    room = _STORIES_BYTES_MAX
    for outcome in chosen:
        drawn = _trial(outcome)
        room -= len(drawn.encode())
        if room < 0:
            break
        told[outcome.number] = drawn
    return told


def _section(
    place: Place, cell: Cell, trials: Sequence[Outcome], told: Mapping[int, Html], name: str
) -> Html:
    row, family = place
    badge = element("span", cell.words, class_=f"badge {cell.tone.value}")
    title = element("h3", f"{row.pipeline} · {row.promise} · {family} ", badge)
    figures = (
        counted(len(trials), "trial"),
        counted(sum(trial.records for trial in trials), "record"),
        *([f"faults that fired: {fired}"] if (fired := Firing.of(trials).words) else []),
        *([f"{span(under)} under faults"] if (under := under_faults_s(trials)) else []),
    )
    worst_first = sorted(trials, key=lambda trial: trial.verdict not in _BAD)
    whole = [told[trial.number] for trial in worst_first if trial.number in told]
    rest = [trial for trial in worst_first if trial.number not in told]
    about = element("p", " · ".join(figures), class_="soft")
    return element("section", title, about, *whole, _rest(rest), id=name, class_="cell")


def _rest(trials: Sequence[Outcome]) -> Html:
    if not trials:
        return Html()
    lines = [element("li", f"#{trial.number} seed {trial.seed} {_said(trial)}") for trial in trials]
    summary = element("summary", f"{counted(len(trials), 'more trial')}, in a line each")
    return element("details", summary, element("ul", *lines, class_="rest"))


def _said(trial: Outcome) -> str:
    notes = [found_words(trial), *_notes(trial)]
    return ", ".join([trial.verdict.value, *filter(None, notes)])


def _notes(trial: Outcome) -> list[str]:
    """What a verdict alone would hide."""
    notes = ["refused to go on"] if trial.refused else []
    return [*notes, "without any fault"] if trial.is_without_fault else notes


def _trial(trial: Outcome) -> Html:
    verdict = element("span", trial.verdict.value, class_=f"badge {TONES[trial.verdict].value}")
    about = [
        found_words(trial),
        *_notes(trial),
        counted(trial.records, "record"),
        span(trial.duration_s),
    ]
    summary = element(
        "summary",
        element("b", f"Trial {trial.number}"),
        " ",
        verdict,
        " ",
        element("span", " · ".join(filter(None, about)), class_="soft"),
    )
    due = ", ".join(defect.value for defect in trial.must_show)
    facts = [
        ("Seed", element("code", str(trial.seed))),
        *([("A control", f"has to show: {due or 'a defect'}")] if trial.control else []),
        *([("What went in", element("code", text(trial.workload)))] if trial.workload else []),
        ("What was done", _schedule(trial.schedule, trial.fired)),
        *([("Shortest that breaks it", _schedule(trial.shrunk))] if trial.shrunk else []),
        *([("Under faults", span(trial.under_faults_s))] if trial.under_faults_s else []),
        ("What was found", _findings(trial.findings)),
        *([("It refused", _REFUSED)] if trial.refused else []),
        *([("Error", _error(trial.error))] if trial.error else []),
    ]
    return element(
        "details",
        summary,
        definitions(facts),
        element("div", timeline(trial), class_="wide"),
        _story(trial),
        class_="trial",
    )


def _schedule(schedule: Sequence[str], fired: Sequence[bool] | None = None) -> Html:
    if not schedule:
        return text("nothing")
    had_a_chance = fired or [True] * len(schedule)
    lines = [
        text(line if has_fired else f"{line}  # had no chance", _LINE_CHARS_MAX)
        for line, has_fired in zip(schedule[:_SCHEDULE_MAX], had_a_chance, strict=False)
    ]
    if (left := len(schedule) - _SCHEDULE_MAX) > 0:
        lines.append(text(f"# and {left:,} more, in the book"))
    return element("pre", element("code", joined(lines, "\n")))


def _findings(findings: Sequence[Finding]) -> Html:
    if not findings:
        return text("nothing")
    return element("ul", *(element("li", _finding(finding)) for finding in findings))


def _finding(finding: Finding) -> Html:
    said: list[str] = [element("b", f"{finding.defect.value} {finding.count:,}")]
    if finding.reader:
        said += [" as seen by ", text(finding.reader, _LINE_CHARS_MAX)]
    examples = [text(each, _LINE_CHARS_MAX) for each in finding.examples[:_EXAMPLES_MAX]]
    if examples:
        said += [": ", joined((element("code", each) for each in examples), ", ")]
        said += [", …"] if finding.count > len(examples) else []
    return joined(said)


def _error(error: str) -> Html:
    return element("pre", text(error, _ERROR_CHARS_MAX))


def _story(trial: Outcome) -> Html:
    if not trial.story:
        return Html()
    lines = [
        element(
            "li",
            element("span", f"{happening.at_s:.1f} s", class_="at"),
            element("span", text(happening.kind, _LINE_CHARS_MAX), class_="kind"),
            element("span", text(happening.text, _LINE_CHARS_MAX)),
        )
        for happening in trial.story[:MARKS_MAX]
    ]
    if (left := len(trial.story) - MARKS_MAX) > 0:
        lines.append(element("li", f"and {left:,} more, in the book"))
    return element("ol", *lines, class_="story")
