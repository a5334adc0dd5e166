"""Fixtures: the plan of a small sweep, and its results."""

import pathlib

import pytest

from simtrain.studies.sweep.plan import SweepPlan
from tests.helpers.sweep_files import NUM_PARTS, PART_SIZE, plan_of, run


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> SweepPlan:
    return plan_of(tmp_path_factory.mktemp("plan"), part_size=PART_SIZE)


@pytest.fixture(scope="module")
def whole(plan: SweepPlan, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Run the whole sweep without interruptions; return the folder of its results."""
    out = tmp_path_factory.mktemp("whole") / "out"
    progress = run(plan, out)
    assert (progress.done, progress.num_points, progress.found) == (NUM_PARTS, 24, 0)
    return out
