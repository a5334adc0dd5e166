"""The sweeps that come with simtrain."""

import pytest

from simtrain.base.resources import list_sweeps
from simtrain.scenario import RULES, Scenario
from simtrain.studies.sweep.grid import load_sweep

pytestmark = pytest.mark.slow


def is_legal(scenario: Scenario) -> bool:
    return not any(rule.check(scenario) for rule in RULES)


@pytest.mark.parametrize("name", list_sweeps())
def test_most_points_of_a_shipped_sweep_are_legal(name: str) -> None:
    """A sweep takes a second or two."""
    sweep = load_sweep(name)
    points = {index: sweep.scenario(index) for index in range(sweep.num_points)}
    scenarios = [*sweep.kept(points).values()]
    assert sweep.file["description"]
    assert 5 <= len(scenarios) <= 250
    assert sum(map(is_legal, scenarios)) >= 0.6 * len(scenarios)
