"""Fixtures: a small sweep, and its results."""

import pathlib

import pytest

from simtrain.studies.sweep.grid import Sweep
from tests.helpers.sweep_files import NUM_PARTS, PART_SIZE, run, sweep_of


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return sweep_of(tmp_path_factory.mktemp("sweep"), part_size=PART_SIZE)


@pytest.fixture(scope="module")
def whole(sweep: Sweep, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Run the whole sweep without interruptions; return the folder of its results."""
    out = tmp_path_factory.mktemp("whole") / "out"
    progress = list[tuple[int, int]]()
    assert run(sweep, out, 1, lambda phase, *done: progress.append(done)) == 0
    assert progress[-1] == (24, 24) and len(progress) == NUM_PARTS + 1
    return out
