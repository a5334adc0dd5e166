"""Puts the rooms together: a scenario in, the timeline of one iteration and what it means out."""

from __future__ import annotations

from simtrain.costs.price import Pricer
from simtrain.engine import simulate as run_program
from simtrain.hardware.load import load_profile
from simtrain.hardware.placement import Placement
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration import Iteration
from simtrain.programs.chunk import ActionTime, simulate_chunk
from simtrain.report.breakdown import stage_breakdowns
from simtrain.report.result import Result
from simtrain.scenario import Scenario, check_cluster, check_scenario
from simtrain.workload.chunk import Chunk
from simtrain.workload.shape import LayerShape


def simulate(scenario: Scenario, profile: HardwareProfile | None = None) -> Result:
    """Simulate one training iteration of a scenario on its cluster.

    `profile` stands in for the one that the scenario names.

    Raises:
        InputError: the scenario breaks a rule of the framework, or does not fit its cluster.
    """
    check_scenario(scenario)
    profile = profile or load_profile(scenario.cluster, scenario.hardware_document)
    check_cluster(scenario, profile.cluster.gpus_per_node.value, profile.cluster.num_nodes.value)
    return _run(Iteration(scenario, profile))


def simulate_layer(scenario: Scenario, profile: HardwareProfile) -> tuple[ActionTime, ActionTime]:
    """Forward and backward pass of one layer of a scenario, without embedding and head."""
    pricer = Pricer(profile, Placement.of(scenario, profile.cluster.gpus_per_node.value))
    shape, recompute = LayerShape.of(scenario), scenario.recompute
    hide = scenario.overlap.tensor_parallel
    layer = Chunk(num_layers=1)
    forward = simulate_chunk(layer.forward(shape, recompute, hide=hide), pricer)
    backward = simulate_chunk(layer.backward(shape, recompute, hide=hide), pricer)
    return forward, backward


def _run(iteration: Iteration) -> Result:
    """Run an iteration whose recompute is settled."""
    program, pipeline = iteration.program()
    timeline = run_program(program)
    return Result(
        scenario=iteration.scenario,
        profile=iteration.profile,
        timeline=timeline,
        stages=stage_breakdowns(
            timeline, iteration.schedule, pipeline.actions, iteration.action_time
        ),
        model_flops=iteration.flops(recompute=False),
        hardware_flops=iteration.flops(recompute=True),
        extrapolated=iteration.pricer.extrapolated(),
    )
