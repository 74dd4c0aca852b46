"""A build is named by its sources: two that differ in anything that trials run have two names."""

from __future__ import annotations

from pathlib import Path

from sparkonce.verify.build import build, digest


def test_a_digest_follows_names_and_texts_of_sources_alone(tmp_path: Path) -> None:
    room, other = tmp_path / "room", tmp_path / "other"
    (room / "inner").mkdir(parents=True)
    other.mkdir()
    (room / "inner" / "a.py").write_text("one")
    (tmp_path / "top.py").write_text("top")
    places = [room, tmp_path / "top.py"]
    first = digest(tmp_path, places)
    (room / "note.txt").write_text("no source")
    (other / "b.py").write_text("elsewhere")
    assert digest(tmp_path, places) == first
    (room / "inner" / "a.py").write_text("two")
    changed = digest(tmp_path, places)
    (room / "inner" / "a.py").rename(room / "inner" / "c.py")
    renamed = digest(tmp_path, places)
    (tmp_path / "top.py").write_text("changed")
    assert len({first, changed, renamed, digest(tmp_path, places)}) == 4


def test_a_build_names_the_product_the_verifier_and_what_they_run_on() -> None:
    now = build()
    assert list(now) == ["sparkonce", "product", "verifier", "kafka", "spark", "python"]
    assert all(now.values())
    assert now["product"] != now["verifier"]
    assert build() == now
