"""Recordings are freed at once, and equal values of plans are one object."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import pickle
import pkgutil

import pytest
from hypothesis import given

from simtrain import load_scenario
from simtrain.iteration.plan import microbatch_of
from simtrain.scenario import Scenario
from simtrain.studies.evaluation import Evaluator
from simtrain.workload.gpt import gpt_blocks
from simtrain.workload.hashing import shared
from simtrain.workload.tape import record
from tests.helpers.toys import layer_scenarios, plan_of


def test_a_recording_has_no_reference_cycles() -> None:
    """A search runs without the garbage collector, and its caches drop many recordings."""
    scenario = load_scenario("deepseek_v3")
    blocks = [block for block, _ in gpt_blocks(scenario).runs]
    microbatch = microbatch_of(
        scenario, scenario.mesh(Evaluator().profile_of(scenario).cluster.domains)
    )
    # Objects of other tests are not examined.
    gc.freeze()
    gc.disable()
    try:
        for block in blocks:
            record.__wrapped__(block, microbatch)
        assert gc.collect() == 0
    finally:
        gc.enable()
        gc.unfreeze()


@given(layer_scenarios())
def test_plans_of_equal_scenarios_share_their_values(scenario: Scenario) -> None:
    again = Scenario.model_validate(scenario.model_dump(by_alias=True), by_alias=True)
    one, other = plan_of(scenario), plan_of(again)
    assert one.model is other.model
    assert one.options is other.options
    assert one.step_options is other.step_options
    assert one.stage_parameters is other.stage_parameters
    for key, pass_ in one.passes.items():
        assert other.passes[key] is pass_


@given(layer_scenarios())
def test_a_value_from_another_process_is_replaced_by_the_shared_one(scenario: Scenario) -> None:
    """Hashes of strings differ between processes, so pickles do not contain them."""
    options = plan_of(scenario).options
    copy = pickle.loads(pickle.dumps(options))
    assert "_hash" not in vars(copy)
    assert copy is not options
    assert shared(copy) is options


BUILT_IN_STEPS = {"IssueOrder", "PassBuilder", "Region", "Tape", "TensorVersions"}


@pytest.mark.parametrize("room", ["base", "scenario", "hardware", "workload", "durations"])
def test_values_are_frozen_as_caches_are_asked_for_them(room: str) -> None:
    package = importlib.import_module(f"simtrain.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, value in vars(importlib.import_module(found.name)).items():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                parameters = value.__dataclass_params__  # type: ignore[attr-defined]
                assert parameters.frozen or name in BUILT_IN_STEPS, name
