"""Simulates one iteration: compute durations, build tasks, run them, replay memory, report."""

from __future__ import annotations

from simtrain.engine import simulate
from simtrain.memory.replay import IterationTimeline
from simtrain.memory.report import memory_report
from simtrain.plan import Plan
from simtrain.programs.iteration_builder import tasks_of
from simtrain.programs.seconds import IterationSeconds, Machine
from simtrain.report.breakdown import stage_breakdowns
from simtrain.report.result import Result


def simulate_iteration(plan: Plan, machine: Machine) -> Result:
    """Simulate the iteration of a plan and report time and memory."""
    seconds, iteration = run_iteration(plan, machine)
    profile = machine.model.profile
    return Result(
        seconds=seconds,
        iteration=iteration,
        memory_report=memory_report(plan, profile, iteration),
        stages=stage_breakdowns(seconds, iteration),
        model_flops=seconds.flops(recompute=False),
        hardware_flops=seconds.flops(recompute=True),
        extrapolated=seconds.extrapolated(),
        extrapolated_compute=seconds.extrapolated_compute(),
    )


def run_iteration(plan: Plan, machine: Machine) -> tuple[IterationSeconds, IterationTimeline]:
    """Build and run the tasks of an iteration; return its parts' durations and its timeline."""
    seconds = IterationSeconds.of(plan, machine)
    tasks = tasks_of(seconds.structure)
    timeline = simulate(tasks.program(seconds), machine.engine)
    return seconds, IterationTimeline(timeline, tasks)
