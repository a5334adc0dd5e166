"""Simulate one iteration: compute durations, build tasks, run them."""

from __future__ import annotations

from simtrain.engine import simulate
from simtrain.errors import InputError
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.iteration_tasks import IterationTimeline
from simtrain.iteration.programs.seconds import IterationSeconds, Machine
from simtrain.iteration.programs.unflushed import steady_iteration
from simtrain.iteration.report.result import Result

_YEAR_S = 365.25 * 86_400
_CENTURY_S = 100 * _YEAR_S


def simulate_iteration(plan: Plan, machine: Machine) -> Result:
    """Simulate the iteration of a plan."""
    return Result(run_iteration(plan, machine))


def run_iteration(plan: Plan, machine: Machine) -> IterationTimeline:
    """Build and run the tasks of an iteration."""
    seconds = IterationSeconds.of(plan, machine)
    tasks = tasks_of(seconds.structure)
    if plan.flushes:
        timeline, period_s = simulate(tasks.program(seconds), machine.engine), None
    else:
        timeline, period_s = steady_iteration(seconds, tasks)
    iteration = IterationTimeline(timeline, tasks, seconds, period_s)
    _refuse_endless(iteration.time_s)
    return iteration


def _refuse_endless(time_s: float) -> None:
    """Refuse an iteration of more than a century, or of no time: a value has the wrong unit."""
    if 0 < time_s <= _CENTURY_S:
        return
    message = f"the iteration takes {time_s / _YEAR_S:.3g} years, more than a century"
    if time_s <= 0:
        message = "the iteration takes no time"
    fix = "correct the size of the model or the batch, or the entry of the profile that is far off"
    reason = "no training waits for such an iteration: a value has the wrong unit or is a typo"
    raise InputError.of("E501", message, reason=reason, fix=fix)
