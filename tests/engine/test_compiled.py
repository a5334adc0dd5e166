"""Compiled loops and evaluators equal SimPy to the last bit, for any scenario and any pass."""

import dataclasses
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.random_programs import times_by_engine
from simtrain.base.resources import list_scenarios
from simtrain.durations.model import DurationModel
from simtrain.engine.compiled import run_loop
from simtrain.engine.timeline import idle_seconds
from simtrain.iteration.memory.report import memory_report
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.simulation import simulate as simulate_scenario
from tests.helpers.merged_cases import merged_scenarios
from tests.helpers.toys import a100, plan_of, small

SORTED = st.lists(st.integers(0, 60), max_size=20).map(sorted)


@given(st.lists(SORTED, min_size=4, max_size=4), st.integers(60, 70))
def test_idle_time_is_charged_to_the_first_running_stream(
    streams: list[list[int]], makespan: int
) -> None:
    """Stream 0 waits for streams 1 and 2 (category 0) and for stream 3 (category 1)."""
    tasks = [list(zip(moments[::2], moments[1::2], strict=False)) for moments in streams]
    running = [{at for start, end in queue for at in range(start, end)} for queue in tasks]
    idle = {*range(makespan)} - running[0]
    first = idle & (running[1] | running[2])
    expected = [len(first), len((idle & running[3]) - first)]
    starts = np.cumsum([0, *map(len, tasks)]).astype(np.int32)
    times = np.array([task for queue in tasks for task in queue], float).reshape(-1, 2)
    arrays: tuple[Any, ...] = (
        *(
            np.array(one, np.int32)
            for one in ([0, 0], [[1, 2, 3], [3, 0, 0]], [[0, 0, 1], [1, 0, 0]])
        ),
        *(starts, np.arange(starts[-1], dtype=np.int32)),
        *(times[:, 0].copy(), times[:, 1].copy(), np.float64(makespan)),
    )
    found = run_loop(idle_seconds, arrays, is_compiled=False)
    assert found[0].tolist() == expected
    assert found[1].tolist() == [0, len(idle & running[3])]
    assert np.array_equal(run_loop(idle_seconds, arrays, is_compiled=True), found)


def assert_evaluated(scenario: Scenario, evaluator: Evaluator | None = None) -> None:
    """Check times, utilization and peaks to the last bit, and breakdowns within rounding."""
    result = simulate_scenario(scenario, engine="simpy")
    evaluation = (evaluator or Evaluator(allow_oom=True)).evaluate(scenario)
    run = evaluation.run
    assert run is not None
    assert run.iteration_time_s == result.iteration_time_s
    assert (run.mfu, run.hfu) == (result.mfu, result.hfu)
    assert run.tokens_per_s == result.tokens_per_s
    assert evaluation.peak_bytes == result.memory.fullest.peak_bytes
    assert evaluation.capacity_bytes == result.memory.capacity_bytes
    found, expected = dataclasses.astuple(run.breakdown), dataclasses.astuple(result.breakdown)
    assert found == pytest.approx(expected, abs=1e-12 * result.iteration_time_s)


LARGE = [name for name in list_scenarios() if "1t_" in name or "530b" in name]


@pytest.mark.parametrize("name", sorted({*list_scenarios()} - {*LARGE}))
def test_compiled_equals_simpy_on_a_shipped_scenario(name: str) -> None:
    assert_evaluated(load_scenario(name))


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_compiled_equals_simpy_on_a_large_scenario(name: str) -> None:
    """Compares the start and end of each task."""
    seconds = IterationSeconds.of(plan_of(load_scenario(name)), Machine(DurationModel(a100())))
    program = tasks_of(seconds.structure).program(seconds)
    times = times_by_engine(program)
    for found in times.values():
        assert all(map(np.array_equal, found, times["simpy"]))


def test_caches_of_an_evaluator_do_not_change_results() -> None:
    """A fresh evaluator and one that has evaluated all other scenarios give equal results."""
    used, scenarios = Evaluator(allow_oom=True), [*islice(merged_scenarios(seed=1), 10)]
    first = [used.evaluate(scenario) for scenario in scenarios]
    for scenario, expected in reversed([*zip(scenarios, first, strict=True)]):
        again = used.evaluate(scenario), Evaluator(allow_oom=True).evaluate(scenario)
        assert expected.run and {each.fit for each in again} == {expected.fit}
        assert all(each.run and each.run.to_dict() == expected.run.to_dict() for each in again)


def test_a_scenario_that_does_not_fit_is_not_simulated() -> None:
    large = small(model={"hidden_size": 32768, "num_attention_heads": 32})
    evaluation = Evaluator().evaluate(large)
    assert not evaluation.fits and evaluation.run is None
    assert evaluation.peak_bytes == memory_report(plan_of(large), a100()).fullest.peak_bytes


def test_equal_passes_are_the_same_object() -> None:
    plan = plan_of(small({"sequence_parallel": True}, recompute="selective"))
    passes = [pass_ for pass_, _ in plan.different_passes()]
    assert len(set(passes)) == len(passes) == 6  # first, middle and last, forward and backward
