"""Simulate a scenario on a loaded machine: plan, seconds, program, timeline, result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import MemoryReport, memory_report
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.iteration.run_plan import run_offload, simulate_iteration
from simtrain.scenario import Scenario, check_cluster, check_scenario, check_values
from simtrain.studies.choose import choose, is_open
from simtrain.workload.tape import Block


def simulate_on(
    scenario: Scenario, machine: Machine, layers: Sequence[Block] | None = None
) -> Result:
    """Simulate one training iteration of a scenario on a machine.

    Args:
        scenario: model, parallelism and batch; its cluster is not read.
        machine: the hardware, with the durations that were computed on it.
        layers: as for `simulate`.

    Raises:
        InputError: as `simulate`.
    """
    check_values(scenario)
    check_on(scenario, machine.profile)

    def plan_of(variant: Scenario, kept: tuple[int, ...] | None = None) -> Plan:
        return Plan.of(variant, machine.profile.cluster.domains_of(variant.num_gpus), kept, layers)

    def run(plan: Plan) -> Result:
        return simulate_iteration(plan, machine)

    if not is_open(scenario):
        return run(plan_of(scenario))
    choice = choose(scenario, machine, plan_of, run)
    return replace(choice.run, recompute_choice=choice.why)


def memory_on(scenario: Scenario, machine: Machine) -> MemoryReport:
    """Compute each stage's peak memory on a machine, without simulating time.

    Raises:
        InputError: as `simulate`.
    """
    check_values(scenario)
    if is_open(scenario):
        return simulate_on(scenario, machine).memory
    check_on(scenario, machine.profile)
    plan = Plan.of(scenario, machine.profile.cluster.domains_of(scenario.num_gpus))
    return memory_report(plan, machine.profile, run_offload(plan, machine))


def check_on(scenario: Scenario, profile: HardwareProfile) -> None:
    """Check a scenario's rules, those of a cluster too.

    Raises:
        InputError: the scenario breaks a rule of the framework, or does not fit the cluster.
    """
    check_scenario(scenario)
    cluster = profile.cluster
    check_cluster(
        scenario,
        cluster.gpus_per_node.value,
        cluster.num_nodes.value,
        nvlink_gpus=cluster.nvlink_gpus,
        has_host_link=profile.host_link is not None,
        has_fused_attention=profile.fused_attention is not None,
        product_types=profile.product_types,
        dispatchers=profile.dispatcher_names,
    )
