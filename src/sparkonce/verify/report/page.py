"""The page of a verification: one HTML file that can be kept, mailed and opened anywhere.

Made of a book and nothing else. It loads nothing and runs nothing: style and pictures are inside,
and what it hides is in `<details>`. The headline comes first, proof and stories below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib import resources
from typing import Final

from sparkonce.guarantees import Guarantee
from sparkonce.verify.outcome import Defect, Verdict
from sparkonce.verify.report.book import Book
from sparkonce.verify.report.firing import Firing
from sparkonce.verify.report.glossary import DEFECTS, VERDICTS
from sparkonce.verify.report.grid import Cell, Grid, Row, Standing, Tone, totals
from sparkonce.verify.report.markup import Html, counted, definitions, element, joined, span
from sparkonce.verify.report.plots import controls_plot, damage_plot, families_plot
from sparkonce.verify.report.shown import shown, shown_words, under_faults_s
from sparkonce.verify.report.trials import sections

_TONES: Mapping[Standing, Tone] = {
    Standing.BROKEN: Tone.BROKEN,
    Standing.WEAK: Tone.UNPROVEN,
    Standing.FAILED: Tone.UNPROVEN,
    Standing.UNSHOWN: Tone.UNPROVEN,
    Standing.PARTLY: Tone.EXPECTED,
    Standing.KEPT: Tone.CLEAN,
    Standing.EMPTY: Tone.UNPROVEN,
}
_NAMED_MAX: Final = 8
# Should anything slip through after all, the browser refuses to load or run it.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

Ids = Mapping[tuple[Row, str], str]


def render(book: Book) -> str:
    """The page, to be written as UTF-8."""
    grid = Grid(book.outcomes)
    every = [(row, family) for row in grid.rows for family in grid.families]
    places = [place for place in every if place in grid.cells]
    ids = {place: f"cell-{number}" for number, place in enumerate(places, start=1)}
    body = [_headline(book, grid, ids), _figures(book), _versions(book)]
    if book.outcomes:
        body += [
            _part("What was found", _table(grid, ids)),
            _part("In figures", *_plots(book)),
            _part("Trials", sections(book.outcomes, grid.cells, ids)),
        ]
    body.append(_part("Words", _glossary()))
    return "<!doctype html>\n" + element("html", _head(grid), _body(body), lang="en") + "\n"


def _head(grid: Grid) -> Html:
    style = (
        resources.files("sparkonce.verify.report").joinpath("page.css").read_text(encoding="utf-8")
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", f"{grid.standing.value} · sparkonce verify"),
        element("style", Html(style)),
    )


def _body(parts: list[Html]) -> Html:
    return element("body", element("main", joined(parts, "\n")))


def _plots(book: Book) -> list[Html]:
    return [plot(book.outcomes) for plot in (damage_plot, controls_plot, families_plot)]


def _part(title: str, *content: Html) -> Html:
    return element("section", element("h2", title), *content)


def _headline(book: Book, grid: Grid, ids: Ids) -> Html:
    standing = grid.standing
    worst = [place for place in ids if grid.cells[place].tone in (Tone.BROKEN, Tone.UNPROVEN)]
    # What is broken before what is only unproven.
    worst.sort(key=lambda place: grid.cells[place].tone is not Tone.BROKEN)
    links = [
        element(
            "li",
            element("a", f"{row.pipeline} · {row.promise} · {family}", href=f"#{ids[row, family]}"),
            f": {grid.cells[row, family].words}",
        )
        for row, family in worst[:_NAMED_MAX]
    ]
    if len(worst) > _NAMED_MAX:
        links.append(element("li", f"and {len(worst) - _NAMED_MAX:,} more in the table below"))
    links += [
        element("li", f"{row.pipeline} · {row.promise}: {defects} not shown in any trial")
        for row, defects in list(grid.not_shown.items())[:_NAMED_MAX]
    ]
    return element(
        "header",
        element("p", "sparkonce verify", class_="kicker"),
        element("h1", standing.value),
        element("p", _explained(book, standing), class_="lead"),
        _shown(book),
        element("ul", *links) if links else Html(),
        class_=_TONES[standing].value,
    )


def _explained(book: Book, standing: Standing) -> str:
    verdicts = Counter(outcome.verdict for outcome in book.outcomes)
    match standing:
        case Standing.EMPTY:
            return "There is nothing to say yet."
        case Standing.BROKEN:
            broken, trials = verdicts[Verdict.BROKEN], counted(len(book.outcomes), "trial")
            return f"In {broken:,} of {trials}, something was found that the guarantee excludes."
        case Standing.WEAK:
            return (
                "Controls that have to go wrong went right: the faults of this run didn't bite, "
                "and that nothing else was found proves little."
            )
        case Standing.UNSHOWN:
            return (
                "Nothing was found that a guarantee excludes, and of no trial it is known that a "
                "fault came to pass in it: that proves nothing."
            )
    proof = sum(outcome.is_proof for outcome in book.outcomes)
    said = f"In {counted(proof, 'trial')} in which a fault came to pass, nothing was found that "
    said += f"the guarantee excludes. {_controls(book)}"
    failed = verdicts[Verdict.FAILED]
    return said + (f" {counted(failed, 'trial')} could not be run to the end." if failed else "")


def _shown(book: Book) -> Html:
    """Which guarantees were shown by how many trials, and what is not counted among these."""
    if not book.outcomes:
        return Html()
    said = f"Trials that kept it under a fault: {shown_words(shown(book.outcomes))}."
    ended = [each for each in book.outcomes if each.verdict is not Verdict.FAILED]
    counts = {
        "without any fault": sum(each.is_without_fault for each in ended if not each.control),
        "of which nobody noted what fired": sum(each.fired is None for each in ended),
        "in which the pipeline refused to go on": sum(each.refused for each in ended),
    }
    rest = [f"{counted(count, 'trial')} {what}" for what, count in counts.items() if count]
    return element("p", said, f" Not counted: {', '.join(rest)}." if rest else "", class_="shown")


def _controls(book: Book) -> str:
    strongest = Guarantee.EXACTLY_ONCE.value
    controls = [each for each in book.outcomes if each.control or each.guarantee != strongest]
    if not controls:
        return "No control was run: that these faults would have been noticed is not shown."
    ended = [each for each in controls if each.verdict is not Verdict.FAILED]
    found = sum((totals(outcome) for outcome in ended), Counter[Defect]())
    damage = f"lost {found[Defect.LOST]:,} and repeated {found[Defect.REPEATED]:,} records"
    return f"The controls, weaker promises under the same faults, {damage}, and were caught."


def _figures(book: Book) -> Html:
    outcomes = book.outcomes
    fired = Firing.of(outcomes).words
    figures = {
        "trials": f"{len(outcomes):,}",
        **({"under a fault": f"{under:,}"} if (under := _count_under(book)) else {}),
        "records": f"{sum(outcome.records for outcome in outcomes):,}",
        **({"faults that fired": fired} if fired else {}),
        **({"time under faults": span(s)} if (s := under_faults_s(outcomes)) else {}),
        "run time": span(book.elapsed_s),
        "seed": str(book.seed),
    }
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", figure))
            for name, figure in figures.items()
        ),
        class_="figures",
    )


def _count_under(book: Book) -> int:
    return sum(outcome.is_under_faults for outcome in book.outcomes)


def _versions(book: Book) -> Html:
    started = f"started {book.started}"
    wrote = [(versions, trials) for versions, trials in book.builds if trials]
    if len(wrote) < 2:
        versions = wrote[0][0] if wrote else book.versions
        return element("p", " · ".join([*_named(versions), started]), class_="about soft")
    lines = [
        element("li", f"{counted(trials, 'trial')}: {' · '.join(_named(versions))}")
        for versions, trials in wrote
    ]
    said = f"{started}; {len(wrote)} builds wrote in this book, and are counted together:"
    return element("div", said, element("ul", *lines), class_="about soft")


def _named(versions: Mapping[str, str]) -> list[str]:
    return [f"{name} {version}" for name, version in versions.items()]


def _table(grid: Grid, ids: Ids) -> Html:
    families, not_shown = grid.families, grid.not_shown
    top = [element("th", name, scope="col") for name in ("guarantee", *families)]
    rows: list[Html] = []
    before = None
    for row in grid.rows:
        if row.pipeline != before:
            name = element("th", row.pipeline, colspan=len(top), scope="rowgroup")
            rows.append(element("tr", name, class_="pipeline"))
            before = row.pipeline
        weak = [element("small", f"{not_shown[row]} not shown")] if row in not_shown else []
        cells = [_cell(grid.cells.get((row, f)), ids.get((row, f))) for f in families]
        rows.append(element("tr", element("th", row.promise, *weak, scope="row"), *cells))
    table = element(
        "table",
        element("thead", element("tr", *top)),
        element("tbody", *rows),
        class_="matrix",
    )
    return element("div", table, class_="wide")


def _cell(cell: Cell | None, target: str | None) -> Html:
    if cell is None or target is None:
        return element("td", "·", class_="none")
    words = joined((element("span", part) for part in cell.parts), ", ")
    below = element("small", cell.trial_words) if cell.trial_words else Html()
    return element("td", element("a", words, below, href=f"#{target}"), class_=cell.tone.value)


def _glossary() -> Html:
    verdicts = {verdict.value: meaning for verdict, meaning in VERDICTS.items()}
    defects = {defect.value: meaning for defect, meaning in DEFECTS.items()}
    lists = [
        element("div", element("h3", title), definitions(words.items()))
        for title, words in (("Verdicts", verdicts), ("Defects", defects))
    ]
    return element("div", *lists, class_="glossary")
