"""Sensitivity: resources cover all entries of profiles; schedules: simulated, or refused."""

import pathlib
import re
from typing import Any

import pytest
from hypothesis import given, settings

from simtrain.base.resources import list_profiles
from simtrain.base.strict_yaml import data_of, leaves, load_document
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from simtrain.hardware.upgrades import RESOURCES, with_more
from simtrain.scenario import Scenario, load_scenario
from simtrain.schedules import NAMED
from simtrain.studies.comparison import compare_schedules, sensitivity
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import ROOT
from tests.helpers.toys import a100, changed, small
from tests.iteration.report.test_breakdown import scenarios

_SPEEDS = re.compile(r"[\d.e+-]+ (s|ms|us|ns|[KMGT]?B/s|[KMGT]?b/s|[KMGT]?FLOP/s)")
_OTHER_QUESTIONS = "reliability", "variation"
"""Sections of a profile that no iteration without variation depends on."""
LATENCIES = ("kernel_latencies", "nvlink_latencies", "network_latencies")


def values(model: Any) -> dict[tuple[Any, ...], Any]:
    """Return all values of a profile by their paths, including items of lists."""

    def flat(path: tuple[Any, ...], data: Any) -> Any:
        if isinstance(data, list):
            for place, item in enumerate(data):
                yield from flat((*path, place), item)
        elif data is not None and isinstance(found := data_of(data), dict):
            for inner, value in leaves(found):
                yield from flat((*path, *inner), value)
        else:
            yield path, data

    return dict(flat((), model))


@pytest.mark.parametrize("name", list_profiles())
def test_every_time_and_speed_of_a_profile_belongs_to_one_resource(name: str) -> None:
    profile = load_profile(name)
    now = values(profile)
    scaled: dict[tuple[Any, ...], str] = {}
    for resource_name, resource in RESOURCES.items():
        for path, value in values(with_more(profile, [resource], 2)).items():
            if value != now[path]:
                assert path not in scaled, f"{scaled.get(path)} and {resource_name}: {path}"
                assert value in (2 * now[path], now[path] / 2)
                scaled[path] = resource_name
    written = values(load_document(pathlib.Path(ROOT / f"hw_profiles/{name}.yaml")).data)
    written = {path: text for path, text in written.items() if path[0] not in _OTHER_QUESTIONS}
    speeds = {path for path, text in written.items() if _SPEEDS.fullmatch(str(text))}
    assert len(speeds) > 10
    assert speeds - scaled.keys() - {path for path, value in now.items() if value == 0} == set()


@given(scenario=scenarios())
@settings(max_examples=8, deadline=None)
def test_iteration_time_is_inversely_proportional_to_all_resources(scenario: Scenario) -> None:
    every = with_more(a100(), RESOURCES.values(), 1.1)
    before, after = simulate(scenario, a100()), simulate(scenario, every)
    assert after.iteration_time_s == pytest.approx(before.iteration_time_s / 1.1, rel=1e-12)


def test_compute_without_latencies_depends_on_two_resources() -> None:
    ideal = changed(
        a100(),
        host__issue=0.0,
        gemm__tile_overhead=0.0,
        gemm__accumulate_overhead=0.0,
        memory_bound__kernel_latency=0.0,
    )
    alone = small({"tensor": 1, "pipeline": 1})
    faster = with_more(ideal, [RESOURCES["tensor_cores"], RESOURCES["memory_bandwidth"]], 1.1)
    before_s = simulate(alone, ideal).iteration_time_s
    assert simulate(alone, faster).iteration_time_s == pytest.approx(before_s / 1.1, rel=1e-12)
    saved = sensitivity(simulate(alone, ideal)).saved
    idle = {"nvlink_bandwidth", "network_bandwidth", "host", "host_link", *LATENCIES}
    assert {name for name in saved if not saved[name]} == idle | {"memory_capacity"}


def test_a_host_bound_iteration_gains_from_the_host() -> None:
    software = {"stack": "megatron_2022", "host_issue": "300 us"}
    saved = sensitivity(small({"tensor": 8, "pipeline": 1}, software=software)).saved
    shares = [*saved.values()]
    assert saved["host"] == shares[0] > 0.05 and shares == sorted(shares, reverse=True)


def test_more_memory_saves_time_only_with_recompute_auto() -> None:
    split = {"tensor": 2, "pipeline": 4}
    model = {"num_layers": 16}
    need = simulate(small(split, model=model), a100()).memory.fullest.peak_bytes
    tight = {"gpu": {"memory_capacity": f"{int(0.95 * need)} B"}}
    fixed, chosen = (
        sensitivity(small(split, recompute=recompute, model=model, hardware=tight))
        for recompute in ("full", "auto")
    )
    assert fixed.saved["memory_capacity"] == 0 < chosen.saved["memory_capacity"]


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
    fitting = [trial.name for trial in comparison.trials if trial.result.fit.fits_surely] or legal
    is_own = fitting[0] == scenario.schedule or scenario.schedule not in legal
    assert ("the scenario's own" in comparison.headline) is is_own
    assert comparison.headline.startswith(f"{fitting[0]}, ")
    refused = [each.name for each in comparison.refused]
    assert sorted(legal + refused) == sorted(NAMED)
    times = [trial.result.iteration_time_s for trial in comparison.trials]
    assert times == sorted(times)
    all_s = dict(zip(legal, times, strict=True))
    if not is_own:
        saved = 1 - all_s[fitting[0]] / all_s[scenario.schedule]
        assert f", saves {saved:.1%} of {scenario.schedule}, " in comparison.headline
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
