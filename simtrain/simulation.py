"""A scenario in, the timeline of one iteration and what it means out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from simtrain.durations.model import DurationModel
from simtrain.engine import Engine
from simtrain.hardware.load import profile_of
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration import simulate_iteration
from simtrain.memory.report import MemoryReport, memory_report
from simtrain.plan import Plan
from simtrain.programs.pass_layout import PassTime
from simtrain.programs.seconds import Machine
from simtrain.report.result import Result
from simtrain.scenario import Scenario, check_cluster, check_scenario, check_values
from simtrain.studies.choose import choose, is_open
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
        scenario: model, parallelism, batch, and the machine's name.
        profile: stands in for the one that the scenario names.
        engine: what runs it; results are equal to the last bit.
        layers: blocks that stand in for the layers of the scenario's GPT, first to last.

    Whether it fits in memory is for `Result.memory` to say: it is simulated either way.

    Raises:
        InputError: the scenario has a wrong value, breaks a rule of the framework, does not fit its
            cluster, or has another number of layers than are given.
    """
    check_values(scenario)
    profile = checked_profile(scenario, profile)
    machine = Machine(DurationModel(profile), engine)

    def plan_of(one: Scenario, kept: tuple[int, ...] | None = None) -> Plan:
        return Plan.of(one, profile.cluster.domains, kept, layers)

    def run(plan: Plan) -> Result:
        return simulate_iteration(plan, machine, engine)

    if not is_open(scenario):
        return run(plan_of(scenario))
    choice = choose(scenario, profile, plan_of, run)
    return replace(choice.run, recompute_choice=choice.why)


def simulate_fitting(
    scenario: Scenario,
    tell: Callable[[str], None] = lambda words: None,
    engine: Engine = "auto",
) -> Result:
    """Simulate a scenario that fits in memory.

    Where it does not, `tell` is called with the change that is tried next.

    Raises:
        InputError: as `simulate`.
        DoesNotFitError: it does not fit; what would make it fit has been looked for.
    """
    check_values(scenario)
    if not is_open(scenario):
        _check_fits(scenario, simulate_memory(scenario), tell)
    result = simulate(scenario, engine=engine)
    _check_fits(scenario, result.memory, tell)
    return result


def _check_fits(scenario: Scenario, memory: MemoryReport, tell: Callable[[str], None]) -> None:
    if not memory.fits:
        remedy = cheapest_change(scenario, simulate, simulate_memory, tell)
        raise does_not_fit(scenario, memory, remedy)


def simulate_memory(scenario: Scenario, profile: HardwareProfile | None = None) -> MemoryReport:
    """What each stage of a scenario holds at its peak; as `simulate`, but without the time.

    Raises:
        InputError: as `simulate`.
    """
    check_values(scenario)
    if is_open(scenario):
        return simulate(scenario, profile).memory
    profile = checked_profile(scenario, profile)
    return memory_report(Plan.of(scenario, profile.cluster.domains), profile)


def checked_profile(scenario: Scenario, profile: HardwareProfile | None = None) -> HardwareProfile:
    """The profile of a legal scenario.

    Raises:
        InputError: the scenario breaks a rule of the framework, or does not fit its cluster.
    """
    check_scenario(scenario)
    profile = profile or profile_of(scenario)
    gpus_per_node, num_nodes = profile.cluster.gpus_per_node, profile.cluster.num_nodes
    check_cluster(
        scenario,
        gpus_per_node.value,
        num_nodes.value,
        nvlink_gpus=profile.cluster.nvlink_gpus,
        has_host_link=profile.host_link is not None,
        has_fused_attention=profile.fused_attention is not None,
        product_types=profile.product_types,
    )
    return profile


def simulate_layer(scenario: Scenario, profile: HardwareProfile) -> tuple[PassTime, PassTime]:
    """Forward and backward pass of one layer of a scenario, without embedding and head."""
    plan = Plan.of(scenario, profile.cluster.domains)
    machine = Machine(DurationModel(profile))
    return machine.time(plan.layers_pass(1, "F")), machine.time(plan.layers_pass(1, "B"))
