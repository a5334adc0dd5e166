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
    progress = run(sweep, out)
    assert (progress.done, progress.num_points, progress.found) == (NUM_PARTS, 24, 0)
    return out
