"""A planned iteration has the memory and the time of the simulation, each computed once."""

from typing import Any

import pytest

from simtrain.iteration import planned
from simtrain.iteration.memory.working import moments_of_order
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.pass_tasks import _graph
from simtrain.iteration.programs.seconds import Machine
from simtrain.studies.on_machine import plan_on, result_on
from tests.helpers.toys import a100, small


def test_time_is_simulated_once_and_only_if_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    run_iteration = planned.run_iteration

    def counted(*arguments: Any) -> Any:
        runs.append(arguments)
        return run_iteration(*arguments)

    monkeypatch.setattr(planned, "run_iteration", counted)
    iteration = PlannedIteration.of(small({"tensor": 1, "pipeline": 1}), Machine.of(a100()))
    assert iteration.fit.peak_bytes == iteration.memory.fullest.peak_bytes
    assert not runs
    assert iteration.iteration_time_s == iteration.timeline.time_s > 0
    assert len(runs) == 1


def test_scenarios_that_differ_in_numbers_share_tasks_and_moments() -> None:
    machine, caches = Machine.of(a100()), (_graph, moments_of_order)
    for length in (1024, 512):
        before = [cache.cache_info().misses for cache in caches]
        result_on(*plan_on(small(model={"seq_length": length}), machine))
    assert [cache.cache_info().misses for cache in caches] == before
