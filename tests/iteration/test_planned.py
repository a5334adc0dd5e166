"""A planned iteration has the memory and the time of the simulation, each computed once."""

from typing import Any

import pytest

from simtrain.iteration import planned
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.seconds import Machine
from tests.helpers.toys import a100, small


@pytest.mark.parametrize(("unit", "num_before"), [("none", 0), ("layer", 1)])
def test_time_is_simulated_once_and_only_if_it_is_needed(
    unit: str, num_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory needs it if activations are copied to the host."""
    runs: list[Any] = []
    run_iteration = planned.run_iteration

    def counted(*arguments: Any) -> Any:
        runs.append(arguments)
        return run_iteration(*arguments)

    monkeypatch.setattr(planned, "run_iteration", counted)
    scenario = small({"tensor": 1, "pipeline": 1}, offload=unit)
    iteration = PlannedIteration.of(scenario, Machine.of(a100()))
    assert iteration.fit.peak_bytes == iteration.memory.fullest.peak_bytes
    assert len(runs) == num_before
    assert iteration.iteration_time_s == iteration.timeline.time_s > 0
    assert len(runs) == 1
