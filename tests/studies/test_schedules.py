"""All named schedules on one pipeline: each is simulated, or refused with a reason."""

import pytest

from simtrain.errors import InputError
from simtrain.scenario import load_scenario
from simtrain.schedules import NAMED
from simtrain.studies.comparison import compare_schedules
from simtrain.studies.simulation import simulate


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schedule": "zbv"},
        {"parallelism.interleave": 4},
        {"parallelism.pipeline": 1, "parallelism.data": 8},
        {"memory.zero_stage": 0, "overlap.data_parallel": True},
    ],
)
def test_each_named_schedule_is_simulated_or_refused_with_its_rule(changes: dict) -> None:
    scenario = load_scenario("llama3_70b").replace({"batch.global": 16, **changes})
    comparison = compare_schedules(scenario)
    legal = [trial.name for trial in comparison.trials]
    refused = [each.name for each in comparison.refused]
    assert sorted(legal + refused) == sorted(NAMED)
    times = [trial.result.iteration_time_s for trial in comparison.trials]
    assert times == sorted(times)
    for trial in comparison.trials:
        again = simulate(trial.result.scenario)
        assert again.iteration_time_s == trial.result.iteration_time_s
        assert 0 <= trial.bubble < 1
        kept = {"schedule", "parallelism", "overlap"}
        assert trial.result.scenario.model_dump(exclude=kept) == scenario.model_dump(exclude=kept)
    for each in comparison.refused:
        assert each.reason and each.code
        with pytest.raises(InputError):
            simulate(scenario.replace({"schedule": each.name}))


def test_the_own_schedule_is_simulated_as_the_scenario_has_it() -> None:
    scenario = load_scenario("table5_175b_present").replace({"overlap.pipeline": False})
    own = {trial.name: trial for trial in compare_schedules(scenario).trials}["interleaved"]
    assert own.result.iteration_time_s == simulate(scenario).iteration_time_s
