"""Tasks, streams and what they wait for; SimPy; when each task starts and ends."""

from simtrain.engine.deadlock import Blocker, DeadlockError, Wait
from simtrain.engine.pattern import Duration, Pattern, ProgramBuilder
from simtrain.engine.program import Interference, Program, Task
from simtrain.engine.run import Engine, simulate
from simtrain.engine.timeline import Span, Timeline, read_spans

__all__ = [
    "Blocker",
    "DeadlockError",
    "Duration",
    "Engine",
    "Interference",
    "Pattern",
    "Program",
    "ProgramBuilder",
    "Span",
    "Task",
    "Timeline",
    "Wait",
    "read_spans",
    "simulate",
]
