"""Hardware with more of a resource: `hardware.scale` of a scenario."""

import pytest

from simtrain.hardware.entries import entries_of
from simtrain.hardware.load import load_profile, profile_of
from simtrain.hardware.upgrades import RESOURCES, with_more
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.comparison import sensitivity
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import refused


def with_scales(*scales: str) -> Scenario:
    return load_scenario("table5_22b_present", [f"hardware.scale.{scale}" for scale in scales])


@pytest.mark.parametrize("name", RESOURCES)
def test_a_scaled_profile_has_more_of_the_resource(name: str) -> None:
    plain, changed = profile_of(with_scales()), profile_of(with_scales(f"{name}=1.5x"))
    more = with_more(plain, [RESOURCES[name]], 1.5)
    assert changed.host_speed == more.host_speed
    before, after = dict(entries_of(plain)), dict(entries_of(changed))
    assert {name: entry.value for name, entry in after.items()} == {
        name: entry.value for name, entry in entries_of(more)
    }
    for entry, value in after.items():
        is_changed = value.value != before[entry].value
        assert (value.source == "set in the scenario") == is_changed
    assert dict(entries_of(load_profile("a100_sxm4_80gb"))) == before


@pytest.mark.slow
def test_scaled_hardware_gives_the_times_of_the_table_what_to_buy_first() -> None:
    times_s = sensitivity(with_scales(), factor=2).with_more_s
    for name, time_s in times_s.items():
        assert simulate(with_scales(f"{name}=2x")).iteration_time_s == time_s


def test_the_host_time_of_a_stack_and_of_a_scenario_scales() -> None:
    names = ("scale.host=2", "scale.host=1")
    fast, slow = (
        simulate(load_scenario("table5_22b_present", ["software.host_issue=1 ms", f"hardware.{n}"]))
        for n in names
    )
    half = load_scenario("table5_22b_present", ["software.host_issue=0.5 ms"])
    assert fast.iteration_time_s == simulate(half).iteration_time_s < slow.iteration_time_s


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        ("netwrk=2x", 'E208 there is no resource "netwrk"'),
        ("tensor_core=2x", "did you mean tensor_cores?"),
        ("network=0", 'E208 "0" is not a factor'),
        ("network=fast", "such as 2x or 0.5"),
    ],
)
def test_a_bad_scale_is_refused(scale: str, words: str) -> None:
    setting = f"hardware.scale.{scale}"
    errors = refused("run", "gpt2_1_5b", "--set", setting)
    assert errors.startswith(f"--set {setting}: ") and words in errors
