"""Drivers that are killed in mid-batch, or live on as zombies beside the next one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import sparkonce
from deliver import delta_driver
from deliver.delta_folder import KINDS, DeltaFolder, ids

_DRIVERS = 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_once_whatever_happens_to_drivers(tmp_path: Path, seed: int, kind: str) -> None:
    rng = random.Random(f"{seed} {kind}")
    last, former = 0, None
    for _ in range(_DRIVERS):
        driver = _start(tmp_path, kind)
        assert driver.stdout is not None
        for _ in range(rng.randrange(1, 12)):
            last = int(driver.stdout.readline())
        if former is not None:
            _, said = former.communicate(timeout=60)
            assert "FencedError" in said
            former = None
        if rng.random() < 0.5:
            former = driver
        else:
            driver.kill()
            driver.communicate()
    if former is not None:
        former.kill()
        former.communicate()
    written = ids(DeltaFolder(tmp_path))
    assert written == list(range(1, len(written) + 1))
    assert len(written) >= last


def _start(folder: Path, kind: str) -> subprocess.Popen[str]:
    places = (Path(delta_driver.__file__).parents[1], Path(sparkonce.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, str(delta_driver.__file__), str(folder), kind],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
