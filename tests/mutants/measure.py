"""Measures one mutant: a copy of the product, sabotaged, under its cell of a preset.

Driver, tasks and the verifier's host processes all take the product from the copy, by PYTHONPATH;
the verifier's own modules are the same in it. Everything that a run leaves is below one temporary
folder, and its processes end with this one.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.cell import Task
from mutants.mutant import SOURCE, Cell, Mutant, copy_source
from mutants.results import AS_IS, Result

_TESTS = Path(__file__).parents[1]
_TIMEOUT_S = 1800.0
_STOPPED_WITHIN_S = 60.0
_LAST_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Measured:
    results: list[Result]
    """Of each trial that came to its end."""
    why_early: str | None
    """What the process said last, if it ended before the last of them."""


def measure(mutant: Mutant | None, cells: Sequence[Cell], seeds: Sequence[int]) -> Measured:
    """The mutant's trials, or with None those of the product as it is."""
    state = tree(mutant)
    with tempfile.TemporaryDirectory(
        prefix="sparkonce-mutant-", ignore_cleanup_errors=True
    ) as folder:
        copied = copy_source(Path(folder), mutant)
        results, scratch = Path(folder, "results"), Path(folder, "tmp")
        scratch.mkdir()
        results.touch()
        task = Task(
            source=str(copied), cells=tuple(cells), seeds=tuple(seeds), results=str(results)
        )
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(copied), str(_TESTS)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(scratch),
        }
        said = _run([sys.executable, "-m", "mutants.cell", task.to_text()], environment, scratch)
        lines = [
            json.loads(line)
            for line in results.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]  # the last one may be half written
    name = mutant.name if mutant else AS_IS
    found = [
        Result(mutant=name, tree=state, **line | {"cell": Cell(**line["cell"])}) for line in lines
    ]
    return Measured(found, said)


def _run(command: Sequence[str], environment: dict[str, str], folder: Path) -> str | None:
    """None if it went well, else what the process said last."""
    said = folder / "said"
    with said.open("wb") as output:
        # A session of its own: it hears of Ctrl-C from here alone, and ends when its input does.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(_TIMEOUT_S)
        except BaseException as error:
            _stop(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            code = -1
    assert process.stdin is not None
    process.stdin.close()
    return None if code == 0 else said.read_text(errors="replace")[-_LAST_CHARS:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would: brokers, drivers and folders are cleared away on its way out."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tree(mutant: Mutant | None) -> str:
    """Names the product with that change, or as it is, and the verifier, as they are now."""
    changed = mutant.texts() if mutant else {}
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE)
        text = changed[name].encode() if name in changed else path.read_bytes()
        digest.update(f"{name}\0".encode() + text)
    return digest.hexdigest()[:12]
