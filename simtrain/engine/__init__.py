"""Simulates programs of tasks on streams: finds when each task starts and ends."""

from simtrain.engine.program import Program, Task, TaskGraph
from simtrain.engine.run import DeadlockError, Engine, find_idle_seconds, simulate
from simtrain.engine.sharing import LinkLoads
from simtrain.engine.timeline import Span, Timeline, busy_before, exposed_seconds, union_of

__all__ = [
    "DeadlockError",
    "Engine",
    "LinkLoads",
    "Program",
    "Span",
    "Task",
    "TaskGraph",
    "Timeline",
    "busy_before",
    "exposed_seconds",
    "find_idle_seconds",
    "simulate",
    "union_of",
]
