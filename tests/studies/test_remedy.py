"""Whether a scenario fits, the error if it does not, and the remedy that the error names."""

import functools
import json
import shlex
from typing import Any

import pytest

from simtrain.errors import DoesNotFitError, InputError
from simtrain.iteration.memory.report import COMPONENT_LABELS
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.advice import Trial, cheapest_change
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.simulation import simulate, simulate_fitting, simulate_memory
from tests.helpers.command_line import Outcome, call
from tests.helpers.toys import small

pytestmark = pytest.mark.slow

TOO_MUCH = ("table5_22b_full", "--set", "recompute=none")
COMPONENTS = ["parameters", "gradients", "optimizer", "activations", "buffers", "allocator"]


@functools.cache
def refused() -> Outcome:
    """Return the error of a scenario that does not fit; the search for remedies takes seconds."""
    return call("run", *TOO_MUCH)


def test_a_scenario_that_does_not_fit_is_refused() -> None:
    assert (refused().exit_code, refused().stdout) == (3, "")
    head, reason, fix = refused().stderr.splitlines()
    assert head.startswith("E601 table5_22b_full does not fit: stage 0 needs 112.86")
    assert (
        reason.startswith("  reason: ")
        and "during the forward pass of microbatch 0, " in reason
        and "parameters 5.16" in reason
    )
    assert all(f"{COMPONENT_LABELS[name]} " in reason for name in COMPONENTS)
    assert fix.startswith("  fix: the cheapest change that fits is --set ")
    assert fix.endswith(", or run --allow-oom to simulate it anyway")


def test_a_scenario_that_does_not_fit_is_refused_with_json_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simtrain.studies.advice.cheapest_change", lambda *arguments: None)
    outcome = call("run", *TOO_MUCH, "--format=json")
    assert outcome.exit_code == 3
    assert outcome.stderr.startswith("E601 ") and "--set" not in outcome.stderr
    (error,) = json.loads(outcome.stdout)["errors"]
    assert (error["code"], error["place"]) == ("E601", None)


def advised(outcome: Outcome) -> list[str]:
    """Return the options of the cheapest change, as a shell would pass them."""
    _, _, after = outcome.stderr.partition("the cheapest change that fits is ")
    words = shlex.split(after.replace("(", "'('").partition(":")[0])
    return [word for word in words if word == "--set" or "=" in word]


def test_the_cheapest_change_fits() -> None:
    outcome = call("run", *TOO_MUCH, *advised(refused()))
    assert outcome.exit_code == 0


def test_allow_oom_simulates_a_scenario_that_does_not_fit() -> None:
    outcome = call("run", *TOO_MUCH, "--allow-oom")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines()[-1].endswith(" 113/80 GiB: does not fit")
    data = json.loads(call("run", *TOO_MUCH, "--allow-oom", "--format=json").stdout)
    assert data["memory"]["fits"] is False


@pytest.mark.parametrize(("arguments", "exit_code"), [(TOO_MUCH, 3), (("table5_22b_full",), 0)])
def test_memory_as_json(arguments: tuple[str, ...], exit_code: int) -> None:
    outcome = call("run", "--show", "memory", *arguments, "--format=json")
    assert outcome.exit_code == exit_code
    assert outcome.stderr.startswith("E601 ") if exit_code else not outcome.stderr
    data = json.loads(outcome.stdout)
    assert data["fits"] is (exit_code == 0)
    assert data["capacity_bytes"] == 80 * 2**30
    (stage,) = data["stages"]
    assert list(stage["components_bytes"]) == COMPONENTS
    assert sum(stage["components_bytes"].values()) == stage["peak_bytes"]
    assert (stage["peak_bytes"] <= data["capacity_bytes"]) is data["fits"]


# ------------------------------------------------------------------------- the cheapest change


def gpu_of(capacity_gib: float) -> dict[str, Any]:
    return {"gpu": {"memory_capacity": f"{capacity_gib} GiB"}}


def tight(capacity_gib: float, **sections: Any) -> Scenario:
    return small({"tensor": 4, "data": 2}, hardware=gpu_of(capacity_gib), **sections)


def cheapest(scenario: Scenario) -> Trial | None:
    return cheapest_change(scenario, Evaluator(), lambda words: None)


@pytest.mark.parametrize("capacity_gib", [7.0, 6.0])
def test_no_single_change_that_surely_fits_is_cheaper(capacity_gib: float) -> None:
    scenario = tight(capacity_gib)
    assert not simulate_memory(scenario).fits
    remedy = cheapest(scenario)
    assert remedy and remedy[1].fit.fits_surely
    others = [
        {"recompute": {"strategy": "selective"}},
        {"recompute": {"strategy": "full"}},
        {"memory": {"zero_stage": 1}},
        {"memory": {"zero_stage": 1}, "recompute": {"strategy": "selective"}},
    ]
    for sections in others:
        other = simulate(tight(capacity_gib, **sections))
        if other.fit.fits_surely:
            assert remedy[1].iteration_time_s <= other.iteration_time_s


def test_without_a_remedy_the_error_says_so() -> None:
    scenario = tight(2.2)
    assert cheapest(scenario) is None
    with pytest.raises(DoesNotFitError, match="none of the changes tried is enough"):
        simulate_fitting(scenario)


def test_progress_names_each_tried_change_once() -> None:
    messages: list[str] = []
    with pytest.raises(DoesNotFitError) as caught:
        simulate_fitting(tight(7.0), messages.append)
    assert messages[0] == "it does not fit; trying --set parallelism.sequence_parallel=true"
    assert len(set(messages)) == len(messages) > 10
    assert "the cheapest change that fits is --set" in str(caught.value)


def test_auto_chooses_a_recompute_that_fits() -> None:
    scenario = load_scenario("table5_22b_full", ["recompute=auto"])
    result = simulate_fitting(scenario)
    assert result.memory.fits
    assert result.recompute_choice is not None
    assert "(the fastest that fits of " in result.recompute_choice
    assert type(result.to_dict()["recompute_choice"]) is str
    page = call("run", "table5_22b_full", "--set", "recompute=auto").stdout
    assert f"Recompute chosen: {result.recompute_choice}" in page


# ----------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("gpu.memory_capacity", "-80 GiB", "-80 GiB"),
        ("memory.fragmentation", "1.5", "must be less than 1"),
        ("memory.fragmentation", ".nan", ".nan"),
        ("memory.allocator_reserve", "80 GiB", "80 GiB is above gpu.memory_capacity"),
    ],
)
def test_absurd_memory_is_refused(field: str, value: str, words: str) -> None:
    outcome = call(
        "run", "--show", "memory", "table5_22b_full", "--set", f"hardware.{field}={value}"
    )
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert words in outcome.stderr
    assert f"hardware.{field}" in outcome.stderr


def test_illegal_changes_are_not_remedies() -> None:
    """ZeRO without replicas and sequence parallelism on one rank are neither named nor tried."""
    alone = small({"tensor": 1, "pipeline": 1}, hardware=gpu_of(30))
    remedy = cheapest(alone)
    assert remedy
    fields = remedy[0].values.keys()
    assert not fields & {"memory.zero_stage", "parallelism.sequence_parallel"}
    with pytest.raises(InputError):
        simulate_memory(small({"tensor": 1, "pipeline": 1}, memory={"zero_stage": 1}))
