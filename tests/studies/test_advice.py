"""Advice: each change is the simulation that its options ask for."""

import shlex

import pytest

from simtrain.scenario import load_scenario
from simtrain.studies.advice import advise
from simtrain.studies.simulation import simulate

CASES = ("table5_22b_full", "gpt2_1_5b", "mixtral_8x7b")


@pytest.mark.parametrize("name", CASES)
def test_options_give_the_time_and_memory_that_were_advised(name: str) -> None:
    advice = advise(load_scenario(name), top=3)
    now = simulate(load_scenario(name))
    assert (advice.iteration_time_s, advice.fits) == (now.iteration_time_s, now.memory.fits)
    assert advice.advised and len(advice.advised) <= 3
    for change in advice.advised:
        overrides = [word for word in shlex.split(change.options) if word != "--set"]
        result = simulate(load_scenario(name, overrides))
        assert result.iteration_time_s == change.iteration_time_s
        assert result.memory.fullest.peak_bytes == change.peak_bytes
        assert change.more_bytes == change.peak_bytes - advice.peak_bytes
        assert change.saved == 1 - change.iteration_time_s / advice.iteration_time_s
        assert result.memory.fits


def test_the_best_changes_come_first_and_more_of_them_are_the_same_ones() -> None:
    few, many = (advise(load_scenario("table5_22b_full"), top).advised for top in (2, 100))
    assert many[:2] == few
    times = [change.iteration_time_s for change in many]
    assert (
        times == sorted(times)
        and times[-1] < simulate(load_scenario("table5_22b_full")).iteration_time_s
    )


def test_chunks_are_advised_with_the_schedule_that_has_them() -> None:
    """A pipeline with many bubbles: two chunks help, and the options alone simulate them."""
    deep = ["batch.global=128", "parallelism.pipeline=8", "parallelism.tensor=4"]
    deep += ["cluster=h200_sxm"]
    now = load_scenario("llama3_70b", deep)
    advised = {change.options: change for change in advise(now, top=100).advised}
    change = advised["--set parallelism.interleave=2 --set schedule=interleaved"]
    overrides = [*deep, "parallelism.interleave=2", "schedule=interleaved"]
    again = simulate(load_scenario("llama3_70b", overrides))
    assert again.iteration_time_s == change.iteration_time_s


def test_a_scenario_that_does_not_fit_is_advised_what_fits() -> None:
    tight = load_scenario(
        "table5_22b_full", ["recompute=none", "batch.micro=16", "batch.global=64"]
    )
    advice = advise(tight)
    assert not advice.fits
    assert any("recompute" in change.options for change in advice.advised)
    assert advice.num_tried + advice.num_illegal > advice.num_too_large > 0
