"""Simulate one training iteration of a scenario: load its machine, and simulate on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from simtrain.engine import Engine
from simtrain.errors import wrong_type
from simtrain.hardware.load import profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import MemoryReport
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.pass_tasks import PassTime
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_scenario, check_values
from simtrain.studies.evaluation import Evaluator
from simtrain.studies.on_machine import check_on, memory_on, plan_on, result_on
from simtrain.workload.tape import Block

_SHARED = {engine: Evaluator(engine=engine) for engine in get_args(Engine)}
"""The machines of calls that name no profile, so that such calls of a process share durations."""


def simulate(
    scenario: Scenario,
    profile: HardwareProfile | None = None,
    engine: Engine = "auto",
    layers: Sequence[Block] | None = None,
) -> Result:
    """Simulate one training iteration of a scenario on its cluster.

    Args:
        scenario: model, parallelism, batch and cluster.
        profile: hardware profile to use instead of the scenario's cluster.
        engine: execution engine; all give bit-identical results.
        layers: blocks to use instead of the scenario's layers, first to last.

    A scenario that does not fit in memory is simulated too; see `Result.memory`. Results of one
    process share durations: a scenario like one that was simulated before takes milliseconds.

    Raises:
        InputError: an argument has the wrong type, or the scenario has an invalid value, breaks a
            rule of the framework, does not fit its cluster, or has a different number of layers
            than `layers`.
    """
    check_values(scenario)
    return result_on(*plan_on(scenario, machine_of(scenario, profile, engine), layers))


def result_of(scenario: Scenario | Result) -> Result:
    """Return a result as it is, and simulate a scenario."""
    return scenario if isinstance(scenario, Result) else simulate(scenario)


def scenario_of(scenario: Scenario | Result) -> Scenario:
    """Return a scenario as it is, and the scenario of a result, with the chosen recompute."""
    return scenario.scenario if isinstance(scenario, Result) else scenario


def machine_of(scenario: Scenario, profile: HardwareProfile | None, engine: Engine) -> Machine:
    """Return a machine with this profile, or the shared one with the profile of the scenario."""
    if profile is None:
        return _SHARED[engine].machine_of(scenario)
    _check_is_profile(profile)
    return Machine.of(profile, engine)


def simulate_memory(scenario: Scenario) -> MemoryReport:
    """Compute each stage's peak memory, without simulating time."""
    check_values(scenario)
    return memory_on(scenario, machine_of(scenario, None, "auto"))


def checked_profile(scenario: Scenario, profile: HardwareProfile | None = None) -> HardwareProfile:
    """Check a scenario's rules, those of its cluster too, and return its profile."""
    check_scenario(scenario)
    if profile is None:
        profile = profile_of(scenario)
    _check_is_profile(profile)
    check_on(scenario, profile)
    return profile


def _check_is_profile(profile: object) -> None:
    if not isinstance(profile, HardwareProfile):
        name = profile if isinstance(profile, str) else "h100_sxm"
        raise wrong_type(profile, "HardwareProfile", f'write profile=load_profile("{name}")')


def simulate_layer(scenario: Scenario, profile: HardwareProfile) -> tuple[PassTime, PassTime]:
    """Times of the forward and backward pass of one layer, without embedding and head."""
    planned = PlannedIteration.of(scenario, Machine.of(profile))
    forward, backward = (planned.plan.layers_pass(1, kind) for kind in ("F", "B"))
    return planned.machine.time(forward), planned.machine.time(backward)
