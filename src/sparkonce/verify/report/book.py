"""The book of a verification: all its outcomes in one file, from which a later run goes on.

The campaign adds each outcome as it comes and writes the book; `page` makes a page of it. The file
is JSON with one outcome a line, so that what a run adds is what a diff shows.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from sparkonce.errors import SparkonceError
from sparkonce.verify.outcome import Outcome
from sparkonce.verify.report.firing import Firing
from sparkonce.verify.report.shown import shown, under_faults_s

_FORMAT: Final = 3
_READABLE: Final = (1, 2, _FORMAT)
"""The first did not say what had fired, nor how much had gone in; the second did not say by which
build, nor for how long."""
_DERIVED: Final = ("firing", "shown", "under_faults_s", "trials_by_build")
"""Fields of the file that are sums of what the outcomes say: for people and other programs."""


class BookError(SparkonceError):
    """The book can't be read or written; what was on the disk before is still there."""


@dataclass(frozen=True, slots=True)
class Book:
    seed: int
    """From which the seeds of all trials are drawn."""
    started: str
    """When the first run began, as an ISO date and time."""
    versions: dict[str, str]
    """Of the run that began it: sparkonce, kafka, spark and python, and digests of the sources."""
    outcomes: tuple[Outcome, ...] = ()
    elapsed_s: float = 0.0
    """Of all runs that wrote in this book."""
    other_versions: tuple[dict[str, str], ...] = ()
    """Of later runs, where they had others: `Outcome.build` counts on from 1."""

    def __post_init__(self) -> None:
        numbers = [outcome.number for outcome in self.outcomes]
        if len(set(numbers)) != len(numbers):
            twice = next(number for number in numbers if numbers.count(number) > 1)
            raise ValueError(f"trial {twice} is there twice")

    @property
    def next_number(self) -> int:
        """The first that no trial has, nor any behind it; it begins with 1."""
        return max((outcome.number for outcome in self.outcomes), default=0) + 1

    @property
    def gaps(self) -> list[int]:
        """Numbers below it that no trial has: drawn by a run that ended before their turn."""
        taken = {outcome.number for outcome in self.outcomes}
        return [number for number in range(1, self.next_number) if number not in taken]

    @property
    def builds(self) -> list[tuple[dict[str, str], int]]:
        """Each build that wrote in it, with the number of its trials."""
        trials = Counter(outcome.build for outcome in self.outcomes)
        every = (self.versions, *self.other_versions)
        return [(versions, trials[build]) for build, versions in enumerate(every)]

    def written_by(self, versions: dict[str, str]) -> tuple[Book, int]:
        """The book as these versions go on with it, and which of its builds they are."""
        every = [self.versions, *self.other_versions]
        if versions in every:
            return self, every.index(versions)
        return replace(self, other_versions=(*self.other_versions, versions)), len(every)

    def add(self, outcome: Outcome) -> Book:
        """The book with one more trial. A number that is taken is a `ValueError`."""
        return replace(self, outcomes=(*self.outcomes, outcome))

    def put(self, outcome: Outcome) -> Book:
        """The book with this in place of the trial of the same number."""
        same = outcome.number
        return replace(
            self,
            outcomes=tuple(outcome if each.number == same else each for each in self.outcomes),
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(fields, dict) or "format" not in fields:
                raise _Damage('it is JSON of another kind, without the field "format"')
            for name in _DERIVED:
                fields.pop(name, None)
            if (written := fields.pop("format")) not in _READABLE:
                raise BookError(
                    f"the book {path} is written in format {written!r}, this version of sparkonce "
                    f"knows up to {_FORMAT}: go on with the version that wrote it, or start a new "
                    "book"
                )
            book: Self = _made(cls, fields, "the book")
            return book
        except OSError as error:
            raise BookError(
                f"the book {path} can't be read: {error.strerror}; check the path, or start a "
                "new book"
            ) from error
        except (ValueError, RecursionError) as error:
            raise BookError(
                f"{path} is not a book that sparkonce wrote, or it was changed since: {error}; "
                "bring back an older version of the file, or start a new book under another name"
            ) from error

    @staticmethod
    def check_writable(path: Path) -> None:
        """BookError if a book can't be written there; nothing that is there is touched."""
        if path.is_dir():
            raise BookError(f"the book {path} can't be written: it is a folder; name a file")
        with _draft(path):
            pass

    def write(self, path: Path) -> None:
        """All or nothing: what is at the path is a whole book at any moment."""
        with _draft(path) as draft:
            with draft.open("w", encoding="utf-8") as file:
                file.write(self._json())
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)

    def _json(self) -> str:
        head = {
            "format": _FORMAT,
            "seed": self.seed,
            "started": self.started,
            "versions": self.versions,
            **({"other_versions": self.other_versions} if self.other_versions else {}),
            "elapsed_s": self.elapsed_s,
            "firing": dataclasses.asdict(Firing.of(self.outcomes)),
            "shown": shown(self.outcomes),
            "under_faults_s": under_faults_s(self.outcomes),
            "trials_by_build": [trials for _, trials in self.builds],
        }
        lines = [f" {json.dumps(name)}: {_dumps(value)}," for name, value in head.items()]
        outcomes = ",\n".join("  " + _dumps(_fields(outcome)) for outcome in self.outcomes)
        return "\n".join(
            ["{", *lines, ' "outcomes": [', *([outcomes] * bool(outcomes)), " ]", "}\n"]
        )


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """A new file beside it, which is gone behind; BookError where there can't be one."""
    draft = path.with_name(path.name + ".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.touch()
        yield draft
    except OSError as error:
        raise BookError(
            f"the book {path} can't be written: {error.strerror}; the former one is untouched. "
            "Make room or choose another path, and run again to go on from there"
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


class _Damage(ValueError):
    """A field that is missing, unknown or of the wrong kind."""


def _dumps(value: object) -> str:
    # ASCII, because an error's text may hold half a character, which UTF-8 can't.
    return json.dumps(value, allow_nan=False)


def _fields(value: Any) -> Any:
    """A dataclass as a dict, without the fields that have their default: most lines are short."""
    if dataclasses.is_dataclass(value):
        every = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {field.name: _fields(it) for field, it in every if it != field.default}
    if isinstance(value, tuple):
        return [_fields(each) for each in value]
    return value


def _made(kind: Any, value: Any, where: str) -> Any:
    """The value of type `kind` that `_fields` made `value` of; `where` is for the complaint."""
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _made_of_fields(typing.cast("type[Any]", kind), value, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _made(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_made(inner[0], each, f"{where}[{n}]") for n, each in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _made(inner[1], each, f"{where}.{key}") for key, each in value.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum) and value in list(kind):
        return kind(value)
    if kind is float and type(value) is int:
        return float(value)
    # Not isinstance: true and false are integers to Python.
    if type(value) is not kind:
        raise _Damage(f"{where} is {str(value)[:60]!r}, which is no {_name(kind)}")
    return value


def _made_of_fields(kind: type[Any], value: Mapping[str, Any], where: str) -> Any:
    types_by_name = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := value.keys() - fields.keys():
        raise _Damage(f"{where} has an unknown field {min(unknown)!r}")
    for name, field in fields.items():
        if name not in value and field.default is dataclasses.MISSING:
            raise _Damage(f"{where} has no field {name!r}")
    return kind(**{n: _made(types_by_name[n], each, f"{where}.{n}") for n, each in value.items()})


def _name(kind: Any) -> str:
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return words.get(kind) or getattr(kind, "__name__", str(kind)).lower()
