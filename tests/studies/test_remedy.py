"""Whether a scenario fits, the error if it does not, and the remedy that the error names."""

import functools
import json
import shlex
from typing import Any

import pytest

from simtrain.errors import DoesNotFitError
from simtrain.iteration.memory.report import COMPONENT_LABELS
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.advice import simulate_fitting
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
    assert fix.startswith("  fix: the fastest single change that fits is --set ")
    assert fix.endswith(", or run --allow-oom to simulate it anyway")


def test_a_scenario_that_does_not_fit_is_refused_with_json_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simtrain.studies.advice._changes", lambda scenario: ())
    outcome = call("run", *TOO_MUCH, "--format=json")
    assert outcome.exit_code == 3
    assert outcome.stderr.startswith("E601 ") and "--set" not in outcome.stderr
    (error,) = json.loads(outcome.stdout)["errors"]
    assert (error["code"], error["place"]) == ("E601", None)


def advised(outcome: Outcome) -> list[str]:
    """Return the options of the change that helps, as a shell would pass them."""
    _, _, after = outcome.stderr.partition("the fastest single change that fits is ")
    words = shlex.split(after.replace("(", "'('").partition(":")[0])
    return [word for word in words if word == "--set" or "=" in word]


def test_the_change_fits() -> None:
    assert call("run", *TOO_MUCH, *advised(refused())).exit_code == 0


# ------------------------------------------------------------------------- the change that helps


def gpu_of(capacity_gib: float) -> dict[str, Any]:
    return {"gpu": {"memory_capacity": f"{capacity_gib} GiB"}}


def tight(capacity_gib: float, **sections: Any) -> Scenario:
    return small({"tensor": 4, "data": 2}, hardware=gpu_of(capacity_gib), **sections)


def test_without_a_remedy_the_error_says_so() -> None:
    with pytest.raises(DoesNotFitError, match="no single change is enough"):
        simulate_fitting(tight(2.2))


def test_progress_names_each_tried_change_once() -> None:
    messages: list[str] = []
    with pytest.raises(DoesNotFitError) as caught:
        simulate_fitting(tight(7.0), messages.append)
    assert messages[0].startswith("it does not fit; trying --set parallelism.tensor=8 ")
    assert len(set(messages)) == len(messages) > 10
    assert "the fastest single change that fits is --set" in str(caught.value)


def test_auto_chooses_a_recompute_that_fits() -> None:
    result = simulate_fitting(load_scenario("table5_22b_full", ["recompute=auto"]))
    assert result.memory.fits
    assert result.recompute_choice is not None
    assert "(the fastest that fits of " in result.recompute_choice
    assert type(result.to_dict()["recompute_choice"]) is str
    page = call("run", "table5_22b_full", "--set", "recompute=auto").stdout
    assert f"Recompute chosen: {result.recompute_choice}" in page
