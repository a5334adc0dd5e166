"""Runs a program, with SimPy or compiled: both find the same times, to the last bit."""

from __future__ import annotations

from math import inf
from typing import Literal, get_args

from simtrain.engine.deadlock import DeadlockError, find_waits
from simtrain.engine.program import Program
from simtrain.engine.simulator import simulate_events
from simtrain.engine.timeline import Timeline
from simtrain.errors import InputError, Problem

Engine = Literal["auto", "simpy", "compiled"]

LARGE = 50_000
"""Tasks from which on the compiled executor repays being loaded, about half a second."""


def simulate(program: Program, engine: Engine = "auto") -> Timeline:
    """Find when each task starts and ends.

    `auto` is SimPy for a small program and compiled for a large one.

    Raises:
        DeadlockError: tasks are left that can never start.
        InputError: there is no such engine.
    """
    if engine not in get_args(Engine):
        known = ", ".join(get_args(Engine))
        raise InputError([Problem("E504", f"engine is {engine!r}", fix=f"write one of {known}")])
    if is_compiled(engine, len(program.tasks)):
        from simtrain.engine.wiring import simulate_compiled

        timeline = simulate_compiled(program)
    else:
        timeline = simulate_events(program)
    if inf in timeline.end_s:
        raise DeadlockError(tuple(find_waits(program, timeline.end_s)))
    return timeline


def is_compiled(engine: Engine, num_tasks: int) -> bool:
    """Whether an engine runs a program of that size, and the analysis of it, compiled."""
    return engine == "compiled" or (engine == "auto" and num_tasks >= LARGE)
