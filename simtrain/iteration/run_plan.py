"""Simulates one iteration: compute durations, build tasks, run them, replay memory, report."""

from __future__ import annotations

from simtrain.engine import simulate
from simtrain.iteration.memory.report import memory_report
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.iteration.report.breakdown import stage_breakdowns
from simtrain.iteration.report.result import Result


def simulate_iteration(plan: Plan, machine: Machine) -> Result:
    """Simulate the iteration of a plan and report time and memory."""
    iteration = run_iteration(plan, machine)
    profile, seconds = machine.model.profile, iteration.seconds
    return Result(
        iteration=iteration,
        memory_report=memory_report(plan, profile, iteration),
        stages=stage_breakdowns(iteration),
        model_flops=seconds.flops(recompute=False),
        hardware_flops=seconds.flops(recompute=True),
        extrapolated=seconds.extrapolated(),
        extrapolated_compute=seconds.extrapolated_compute(),
    )


def run_iteration(plan: Plan, machine: Machine) -> IterationTimeline:
    """Build and run the tasks of an iteration."""
    seconds = IterationSeconds.of(plan, machine)
    tasks = tasks_of(seconds.structure)
    timeline = simulate(tasks.program(seconds), machine.engine)
    return IterationTimeline(timeline, tasks, seconds)
