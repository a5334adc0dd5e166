"""Puts the rooms together: a scenario in, the timeline of one iteration and what it means out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simtrain.costs.price import Pricer
from simtrain.engine import Engine
from simtrain.engine import simulate as run_program
from simtrain.hardware.load import profile_of
from simtrain.hardware.placement import Placement
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration import Iteration
from simtrain.memory.choose import choose, is_open
from simtrain.memory.curve import Ran
from simtrain.memory.remedy import cheapest_change
from simtrain.memory.report import MemoryReport, memory_report
from simtrain.programs.chunk import ActionTime, simulate_chunk
from simtrain.report.breakdown import stage_breakdowns
from simtrain.report.result import Result
from simtrain.report.verdict import does_not_fit
from simtrain.scenario import Scenario, check_cluster, check_scenario, check_values
from simtrain.workload.chunk import Chunk
from simtrain.workload.parameters import layer_parameters
from simtrain.workload.shape import LayerShape
from simtrain.workload.zero import DividedStates


def simulate(
    scenario: Scenario, profile: HardwareProfile | None = None, engine: Engine = "auto"
) -> Result:
    """Simulate one training iteration of a scenario on its cluster.

    `profile` stands in for the one that the scenario names. `engine` runs it; all find the same to
    the last bit. Whether it fits in memory is for
    `Result.memory` to say: it is simulated either way.

    Raises:
        InputError: the scenario has a wrong value, breaks a rule of the framework, or does not fit
            its cluster.
    """
    check_values(scenario)
    profile = checked_profile(scenario, profile)
    if is_open(scenario):

        def iteration_of(one: Scenario, kept: tuple[int, ...] | None) -> Iteration:
            return Iteration(one, profile, kept, engine)

        choice = choose(scenario, iteration_of, run_iteration)
        return replace(choice.run, recompute_choice=choice.why)
    return run_iteration(Iteration(scenario, profile, engine=engine))


def simulate_fitting(
    scenario: Scenario,
    tell: Callable[[str], None] = lambda words: None,
    engine: Engine = "auto",
) -> Result:
    """Simulate a scenario that fits in memory.

    Where it does not, `tell` is told which change is tried next.

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
    return memory_report(Iteration(scenario, checked_profile(scenario, profile)))


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
        has_host_link=profile.host_link is not None,
        has_fused_attention=profile.fused_attention is not None,
    )
    return profile


def simulate_layer(scenario: Scenario, profile: HardwareProfile) -> tuple[ActionTime, ActionTime]:
    """Forward and backward pass of one layer of a scenario, without embedding and head."""
    pricer = Pricer(profile, Placement.of(scenario, profile.cluster.gpus_per_node.value))
    shape, recompute = LayerShape.of(scenario), scenario.recompute
    hide = scenario.overlap.tensor_parallel
    layer = Chunk(num_layers=1)
    divided = DividedStates.of(scenario, layer_parameters(shape), others=0)
    passes = (
        one_way(shape, recompute, hide=hide, divided=divided)
        for one_way in (layer.forward, layer.backward)
    )
    forward, backward = (simulate_chunk(order, pricer) for order in passes)
    return forward, backward


def run_iteration(iteration: Iteration) -> Result:
    """Run an iteration whose recompute is settled."""
    pattern, pipeline = iteration.pattern()
    timeline = run_program(pattern.program(iteration.seconds), iteration.engine)
    ran = Ran(timeline, pipeline)
    return Result(
        iteration=iteration,
        ran=ran,
        memory=memory_report(iteration, ran),
        stages=stage_breakdowns(
            timeline, iteration.schedule, pipeline.actions, iteration.action_time
        ),
        model_flops=iteration.flops(recompute=False),
        hardware_flops=iteration.flops(recompute=True),
        extrapolated=iteration.pricer.extrapolated(),
    )
