"""What the engine runs: tasks, the streams they queue on, and what they wait for."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from simtrain.errors import InputError, Problem


@dataclass(frozen=True, slots=True)
class Task:
    """Something that takes `duration_s` seconds of one stream.

    `after` holds the indices, in the program, of the tasks that must have ended before this one
    starts. `kind` is a label for reports. `contends` marks a task that slows the tasks of a
    victim stream while it runs (see `Interference`).
    """

    name: str
    stream: str
    duration_s: float
    after: tuple[int, ...] = ()
    kind: str = ""
    contends: bool = False


@dataclass(frozen=True, slots=True)
class Interference:
    """While contending tasks run on `aggressors`, their victim's speed is 1/(1 + slowdown).

    So a collective that occupies multiprocessors slows the GEMM beside it; two of them slow it no
    more than one. The aggressors themselves are not slowed.
    """

    aggressors: tuple[str, ...]
    slowdown: float


@dataclass(frozen=True, slots=True)
class Program:
    """Tasks in the order in which each stream takes them: a stream is a FIFO, one task at a time.

    `interference` maps a victim stream to what slows it; a stream that runs nothing slows nobody.
    Raises InputError (E501 to E503) for a duration that is not a finite number >= 0, for a wait
    that no task can satisfy, and for an impossible interference.
    """

    tasks: tuple[Task, ...]
    interference: Mapping[str, Interference] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = [*self._task_problems(), *self._interference_problems()]
        if problems:
            raise InputError(problems)

    def __repr__(self) -> str:
        return f"<Program: {len(self.tasks):,} tasks on {len(self.queues()):,} streams>"

    def queues(self) -> dict[str, list[int]]:
        """Stream to the indices of its tasks, both in the order of the tasks."""
        queues: dict[str, list[int]] = {}
        for index, task in enumerate(self.tasks):
            queues.setdefault(task.stream, []).append(index)
        return queues

    def _task_problems(self) -> Iterator[Problem]:
        num_tasks = len(self.tasks)
        for index, task in enumerate(self.tasks):
            if not 0 <= task.duration_s < math.inf:
                yield _bad_duration(task)
            for other in task.after:
                if other == index or not 0 <= other < num_tasks:
                    yield _bad_wait(task, index, other, num_tasks)

    def _interference_problems(self) -> Iterator[Problem]:
        for victim, interference in self.interference.items():
            message = f"stream {victim!r} is slowed by {interference}"
            if not 0 <= interference.slowdown < math.inf:
                yield Problem(code="E503", message=message, reason="a slowdown is finite and >= 0")
            if victim in interference.aggressors:
                yield Problem(code="E503", message=message, reason="a stream runs one task at once")


def _bad_duration(task: Task) -> Problem:
    return Problem(
        code="E501",
        message=f"task {task.name!r} on {task.stream!r} lasts {task.duration_s!r} s",
        reason="a duration is a finite number of seconds, zero or more",
    )


def _bad_wait(task: Task, index: int, other: int, num_tasks: int) -> Problem:
    reason = "a task cannot wait for itself"
    if other != index:
        reason = f"the program's tasks are 0 to {num_tasks - 1}"
    message = f"task {task.name!r} (number {index}) waits for task number {other}"
    return Problem(code="E502", message=message, reason=reason)
