"""Simulate a scenario on a loaded machine: plan, seconds, program, timeline, result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simtrain.errors import InputError
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.report import MemoryReport
from simtrain.iteration.planned import PlannedIteration
from simtrain.iteration.programs.seconds import Machine
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, check_cluster, check_scenario, check_values
from simtrain.workload.tape import Block

if TYPE_CHECKING:
    from simtrain.studies.choose import PolicyChoice


def simulate_on(
    scenario: Scenario, machine: Machine, layers: Sequence[Block] | None = None
) -> Result:
    """Simulate one training iteration of a scenario on a machine.

    Raises:
        InputError: as `simulate`.

    Args:
        scenario: model, parallelism and batch; its cluster is not read.
    """
    check_values(scenario)
    planned, choice = plan_on(scenario, machine, layers)
    return Result(planned.timeline, choice.why if choice else None)


def memory_on(scenario: Scenario, machine: Machine) -> MemoryReport:
    """Compute each stage's peak memory on a machine, without simulating time.

    Raises:
        InputError: as `simulate`.
    """
    check_values(scenario)
    planned, choice = plan_on(scenario, machine)
    # A choice has simulated time, so that the peaks have their times too.
    return Result(planned.timeline).memory if choice else planned.memory


def plan_on(
    scenario: Scenario, machine: Machine, layers: Sequence[Block] | None = None
) -> tuple[PlannedIteration, PolicyChoice | None]:
    """Check a scenario and plan its iteration; choose its recompute if that is open.

    Raises:
        InputError: as `check_on`.
    """
    check_on(scenario, machine.profile)
    if not scenario.recompute.is_open:
        return PlannedIteration.of(scenario, machine, layers=layers), None
    from simtrain.studies.choose import choose

    choice = choose(scenario, machine, layers)
    return choice.chosen, choice


def refuse_program(base: Scenario) -> None:
    """Refuse a scenario with a recorded program.

    Raises:
        InputError: it has one (E941).
    """
    if base.program is None:
        return
    reason = "a recording has the ops of the layout in which the program ran"
    fix = "record the program with other arguments and numbers of GPUs, and compare the scenarios"
    message = f"no layouts can be searched for the recorded program {base.program}"
    raise InputError.of("E941", message, base.positions.of_value(("program",)), fix, reason)


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
