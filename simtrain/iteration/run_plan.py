"""Simulate one iteration: compute durations, build tasks, run them."""

from __future__ import annotations

from simtrain.engine import simulate
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.iteration.report.result import Result


def simulate_iteration(plan: Plan, machine: Machine) -> Result:
    """Simulate the iteration of a plan."""
    return Result(run_iteration(plan, machine))


def run_copies(plan: Plan, machine: Machine) -> IterationTimeline | None:
    """Run an iteration if its memory depends on time: if activations are copied to the host."""
    return run_iteration(plan, machine) if plan.offloads else None


def run_iteration(plan: Plan, machine: Machine) -> IterationTimeline:
    """Build and run the tasks of an iteration."""
    seconds = IterationSeconds.of(plan, machine)
    tasks = tasks_of(seconds.structure)
    timeline = simulate(tasks.program(seconds), machine.engine)
    return IterationTimeline(timeline, tasks, seconds)
