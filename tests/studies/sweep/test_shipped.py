"""The sweeps that come with simtrain."""

import pytest

from simtrain.base.resources import list_sweeps
from simtrain.scenario import RULES
from simtrain.studies.sweep.grid import load_sweep

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", list_sweeps())
def test_most_points_of_a_shipped_sweep_are_legal(name: str) -> None:
    sweep = load_sweep(name)
    points = {index: sweep.scenario(index) for index in range(sweep.num_points)}
    scenarios = [*sweep.kept(points).values()]
    assert sweep.file["description"]
    assert 5 <= len(scenarios) <= 250
    illegal = [each for each in scenarios if any(rule.check(each) for rule in RULES)]
    assert len(illegal) <= 0.4 * len(scenarios)
