"""Simulate one training iteration of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from simtrain.durations.model import DurationModel
from simtrain.engine import Engine
from simtrain.errors import wrong_type
from simtrain.hardware.load import profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import MemoryReport, memory_report
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.pass_tasks import PassTime
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.iteration.run_plan import run_copies, simulate_iteration
from simtrain.scenario import Scenario, check_cluster, check_scenario, check_values
from simtrain.studies.choose import choose, is_open
from simtrain.studies.machines import SHARED
from simtrain.studies.remedy import cheapest_change, does_not_fit
from simtrain.workload.tape import Block


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
    machine = _machine(scenario, profile, engine)
    profile = checked_profile(scenario, machine.model.profile)

    def plan_of(variant: Scenario, kept: tuple[int, ...] | None = None) -> Plan:
        return Plan.of(variant, profile.cluster.domains_of(variant.num_gpus), kept, layers)

    def run(plan: Plan) -> Result:
        return simulate_iteration(plan, machine)

    if not is_open(scenario):
        return run(plan_of(scenario))
    choice = choose(scenario, machine, plan_of, run)
    return replace(choice.run, recompute_choice=choice.why)


def result_of(scenario: Scenario | Result) -> Result:
    """Return a result as it is, and simulate a scenario.

    Raises:
        InputError: as `simulate`.
    """
    return scenario if isinstance(scenario, Result) else simulate(scenario)


def scenario_of(scenario: Scenario | Result) -> Scenario:
    """Return a scenario as it is, and the scenario of a result, with the chosen recompute."""
    return scenario.scenario if isinstance(scenario, Result) else scenario


def _machine(scenario: Scenario, profile: HardwareProfile | None, engine: Engine) -> Machine:
    """Return a machine with this profile, or the shared one with the profile of the scenario."""
    if profile is None:
        return SHARED.of(scenario, engine)
    return Machine(DurationModel(profile), engine)


def simulate_fitting(
    scenario: Scenario,
    on_progress: Callable[[str], None] = lambda description: None,
    engine: Engine = "auto",
) -> Result:
    """Simulate a scenario, or suggest the cheapest change if it does not fit in memory.

    Args:
        scenario: as for `simulate`.
        on_progress: receives a description of each change that is tried.
        engine: as for `simulate`.

    Raises:
        InputError: as `simulate`.
        DoesNotFitError: the scenario does not fit; the error names the cheapest change, if any.
    """
    check_values(scenario)
    if is_open(scenario):
        result = simulate(scenario, engine=engine)
        check_fits(scenario, result.memory, on_progress)
        return result
    machine = _machine(scenario, None, engine)
    profile = checked_profile(scenario, machine.model.profile)
    plan = Plan.of(scenario, profile.cluster.domains_of(scenario.num_gpus))
    check_fits(scenario, memory_report(plan, profile, run_copies(plan, machine)), on_progress)
    return simulate_iteration(plan, machine)


def check_fits(
    scenario: Scenario,
    memory: MemoryReport,
    on_progress: Callable[[str], None] = lambda description: None,
) -> None:
    """Refuse a scenario that needs more memory than a GPU has.

    `on_progress` receives a description of each change that is tried.

    Raises:
        DoesNotFitError: with the cheapest change that makes it fit.
    """
    if not memory.fits:
        remedy = cheapest_change(scenario, simulate, simulate_memory, on_progress)
        raise does_not_fit(scenario, memory, remedy)


def simulate_memory(scenario: Scenario, profile: HardwareProfile | None = None) -> MemoryReport:
    """Compute each stage's peak memory, without simulating time.

    Raises:
        InputError: as `simulate`.
    """
    check_values(scenario)
    if is_open(scenario):
        return simulate(scenario, profile).memory
    machine = _machine(scenario, profile, "auto")
    profile = checked_profile(scenario, machine.model.profile)
    plan = Plan.of(scenario, profile.cluster.domains_of(scenario.num_gpus))
    return memory_report(plan, profile, run_copies(plan, machine))


def checked_profile(scenario: Scenario, profile: HardwareProfile | None = None) -> HardwareProfile:
    """Check a scenario's rules and return its profile.

    Raises:
        InputError: the scenario breaks a rule of the framework, or does not fit its cluster.
    """
    check_scenario(scenario)
    if profile is None:
        profile = profile_of(scenario)
    elif not isinstance(profile, HardwareProfile):
        name = profile if isinstance(profile, str) else "h100_sxm"
        raise wrong_type(profile, "HardwareProfile", f'write profile=load_profile("{name}")')
    gpus_per_node, num_nodes = profile.cluster.gpus_per_node, profile.cluster.num_nodes
    check_cluster(
        scenario,
        gpus_per_node.value,
        num_nodes.value,
        nvlink_gpus=profile.cluster.nvlink_gpus,
        has_host_link=profile.host_link is not None,
        has_fused_attention=profile.fused_attention is not None,
        product_types=profile.product_types,
        dispatchers=profile.dispatcher_names,
    )
    return profile


def simulate_layer(scenario: Scenario, profile: HardwareProfile) -> tuple[PassTime, PassTime]:
    """Times of the forward and backward pass of one layer, without embedding and head."""
    plan = Plan.of(scenario, profile.cluster.domains_of(scenario.num_gpus))
    machine = Machine(DurationModel(profile))
    return machine.time(plan.layers_pass(1, "F")), machine.time(plan.layers_pass(1, "B"))
