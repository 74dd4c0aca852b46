"""`sparkonce verify`: does the promise hold? Faults from a seed, other clients as witnesses.

Asks the campaign for outcomes and shows them: a matrix while it runs, a page and a JSON behind it.
"""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sparkonce.console.course import CourseView
from sparkonce.errors import ConfigError
from sparkonce.local.jars import broker_jars
from sparkonce.local.java import short_lived_variable
from sparkonce.verify.build import build
from sparkonce.verify.campaign import Campaign
from sparkonce.verify.contract import Pipeline
from sparkonce.verify.pipelines import built_in, ends_built_in, peers_built_in
from sparkonce.verify.presets import Wish
from sparkonce.verify.report.book import Book
from sparkonce.verify.report.firing import Firing
from sparkonce.verify.report.grid import Standing
from sparkonce.verify.report.markup import counted, span
from sparkonce.verify.report.matrix import Matrix
from sparkonce.verify.report.page import render
from sparkonce.verify.report.shown import shown, shown_words, under_faults_s

_DEFAULT_BOOK = Path("verification.json")


def verify(
    pipeline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Verify this pipeline of yours, a Python file with a function run(job), in place "
            "of the built-in ones. May be given several times.",
        ),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Other people's pipelines instead of ours.")
    ] = False,
    ends: Annotated[
        bool,
        typer.Option(
            "--ends",
            help="Both ends instead: from files and tables into Kafka, from Kafka into DuckDB, "
            "PostgreSQL and Delta, and from a table to a table.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="Only trials whose pipeline, guarantee or family has this word, in capitals or "
            "not; several must all be there.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Run the full preset for about so long: schedules without end, drawn from the "
            "seed. A later run goes on where this one stopped.",
        ),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="At most so many trials in this run.")
    ] = None,
    bounces: Annotated[
        bool,
        typer.Option(
            "--bounces",
            help="Kafka's own method instead: 100,000 values, 750 a transaction, while brokers are "
            "bounced, hard and clean.",
        ),
    ] = False,
    replay: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Run this trial of the book again, alone."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="All chance comes from it. Default: a new one.")
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(min=1, help="Of the cluster that is started. Some controls need three."),
    ] = 3,
    json: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The book: all outcomes. The page stands beside it, as .html. If it is there, "
            "this run adds to it.",
        ),
    ] = _DEFAULT_BOOK,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new book in place of the one that is there.")
    ] = False,
) -> None:
    """Break a pipeline in every way there is, and count what was lost, repeated, reordered or torn.

    Starts a real Kafka, runs pipelines under each guarantee, cuts their connections, kills their
    processes and brokers, and reads what came out with other people's clients. The weaker
    guarantees and some pipelines that are wrong on purpose are controls: if they show nothing, the
    run proves nothing. Exit code 1 if a promise was broken, or nothing was proven.

    [bold]Examples[/]

      sparkonce verify                              the quick preset, about 5 minutes
      sparkonce verify --only producer              the producer alone, about a minute
      sparkonce verify --ends                       files, tables and databases
      sparkonce verify --minutes 60                 the full preset, for an hour
      sparkonce verify --pipeline my_job.py         your own
      sparkonce verify --replay 17                  trial 17 of the book again
    """
    console = Console()
    os.environ.update(short_lived_variable())  # for brokers, tools and Spark
    broker_jars()  # here, because its progress bar and the matrix can't share the screen
    page = json.with_suffix(".html")
    _check_places(json, page)
    book = Book.read(json) if json.exists() and not fresh else _new_book(seed)
    if seed is not None and seed != book.seed:
        raise ConfigError(
            f"{json} was begun with seed {book.seed}, not {seed}: leave --seed out to go on with "
            "it, or start a new book with --fresh or another --json"
        )
    own = [Pipeline.load(str(path)) for path in pipeline or ()]
    given = peers_built_in() if peers else ends_built_in() if ends else built_in()
    wish = Wish(
        pipelines=tuple(own or given),
        seed=book.seed,
        brokers=brokers,
        runs=runs,
        minutes=minutes,
        only=tuple(only or ()),
        controls=not own and not peers and not ends,
        bounces=bounces,
        replay=replay,
    )
    console.print(f"seed {book.seed}; {len(book.outcomes)} trials in {escape(str(json))} so far")
    before_s = book.elapsed_s
    book, index = book.written_by(build())
    if told := _other_builds(book, index):
        console.print(f"[yellow]{told}[/]", highlight=False)
    matrix = Matrix(book.outcomes)
    with CourseView(console, matrix) as view:
        campaign = Campaign(
            wish,
            book,
            build=index,
            told=view.add,
            heard=view.say,
            saved=lambda so_far: so_far.write(json),
        )
        view.expect(campaign.planned)
        try:
            campaign.run()
        except KeyboardInterrupt:
            console.print("Stopped. All trials whose round had ended before are in the book.")
        finally:
            book = campaign.book
            if book.outcomes:
                page.write_text(render(book), encoding="utf-8")
    console.print(matrix.legend())
    console.print(f"This run took {book.elapsed_s - before_s:.0f} s.")
    for what, where in (("page", page), ("book", json)) if book.outcomes else ():
        console.print(f"{what}: {escape(str(where))}", highlight=False, soft_wrap=True)
    if told := _other_builds(book, index):
        console.print(f"[yellow]{told}[/]", highlight=False)
    _conclude(console, book, matrix.standing)
    if matrix.standing not in (Standing.KEPT, Standing.PARTLY):
        raise typer.Exit(1)


def _conclude(console: Console, book: Book, standing: Standing) -> None:
    """The last two lines: what came of it, and what of it is shown by how many trials."""
    colour = {Standing.KEPT: "green", Standing.PARTLY: "yellow"}.get(standing, "red")
    under = sum(outcome.is_under_faults for outcome in book.outcomes)
    said = f"{counted(len(book.outcomes), 'trial')}, {under:,} under a fault that came to pass"
    if seconds := under_faults_s(book.outcomes):
        said += f", for {span(seconds)} together"
    if fired := Firing.of(book.outcomes).words:
        said += f"; of the faults that were planned, {fired} did"
    console.print(f"[bold {colour}]{standing.value}.[/] {said}.", soft_wrap=True)
    held = shown_words(shown(book.outcomes))
    console.print(f"Trials that kept it under a fault: {held}.", soft_wrap=True)


def _other_builds(book: Book, index: int) -> str:
    """That other sources or versions than those of now have trials in the book; "" if none have."""
    builds = book.builds
    now = builds[index][0]
    told = []
    for versions, trials in builds[:index] + builds[index + 1 :]:
        names = [name for name in {**now, **versions} if versions.get(name) != now.get(name)]
        other = ", ".join(f"{name} {versions.get(name, 'not noted')}" for name in names)
        if trials:
            told.append(f"{trials:,} with {other}")
    if not told:
        return ""
    return (
        f"Trials in this book that did not run with what is here now: {'; '.join(told)}. They are "
        "counted with the others; --fresh starts a new book."
    )


def _check_places(json: Path, page: Path) -> None:
    """Before the first trial: what can't be kept need not be run."""
    if page == json:
        raise ConfigError(f"--json {json} is where the page is written: name it .json")
    Book.check_writable(json)
    if page.is_dir() or (page.exists() and not os.access(page, os.W_OK)):
        raise ConfigError(f"the page {page} can't be written: move what is there, or name another")


def _new_book(seed: int | None) -> Book:
    return Book(
        seed=seed if seed is not None else random.SystemRandom().randrange(2**32),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=build(),
    )
