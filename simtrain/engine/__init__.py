"""Tasks, streams and what they wait for; SimPy; when each task starts and ends."""

from simtrain.engine.deadlock import Blocker, DeadlockError, Wait
from simtrain.engine.program import Interference, Program, ProgramBuilder, Task
from simtrain.engine.simulator import simulate
from simtrain.engine.timeline import Span, Timeline, read_spans

__all__ = [
    "Blocker",
    "DeadlockError",
    "Interference",
    "Program",
    "ProgramBuilder",
    "Span",
    "Task",
    "Timeline",
    "Wait",
    "read_spans",
    "simulate",
]
