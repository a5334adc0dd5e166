"""Tasks, streams and what they wait for; SimPy; when each task starts and ends."""

from simtrain.engine.builder import Duration, ProgramBuilder
from simtrain.engine.deadlock import Blocker, DeadlockError, Wait
from simtrain.engine.program import Interference, Program, Task
from simtrain.engine.run import Engine, is_compiled, simulate
from simtrain.engine.timeline import Span, Timeline

__all__ = [
    "Blocker",
    "DeadlockError",
    "Duration",
    "Engine",
    "Interference",
    "Program",
    "ProgramBuilder",
    "Span",
    "Task",
    "Timeline",
    "Wait",
    "is_compiled",
    "simulate",
]
