"""A traced step as a program for the engine.

Each worker runs its ops one after another. A transfer or a collective, in which several workers
meet, begins when the last of them arrives, and then takes the shortest of the recorded durations:
the others include waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simtrain.engine import DeadlockError, Program, Task, simulate
from simtrain.engine.compiled import Flags, Floats
from simtrain.errors import InputError, Location

_MOST_DRAWN = 1 << 20
"""Durations that are simulated together: they and the times of their tasks take some 30 MB."""


@dataclass(slots=True)
class StepTask:
    """A pass of a worker, or a transfer or collective in which workers meet.

    Args:
        name: in reports.
        place: where the first of its rows stands.
        stream: what runs it; tasks of one stream follow one another.
        suspects: kinds of suspects, and which of each kind this pass belongs to.
        recorded_s: start and end in the step; None if it is no pass, or clocks differ.
        durations_s: as each of its workers recorded it.
        after: tasks before it, of all its workers.
    """

    name: str
    place: Location
    stream: str
    suspects: Mapping[str, str] = field(default_factory=dict)
    recorded_s: tuple[float, float] | None = None
    durations_s: list[float] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


@dataclass(eq=False)
class TracedStep:
    """The tasks of a step.

    Args:
        tasks: in the order in which workers began them.
        measured_s: time of the step in the trace.
        num_workers: workers of the step.
        durations_s: [tasks], what each task takes once all its workers are there.
        typical_s: [tasks], what each would take without stragglers.
        even_s: [tasks], what each would take if sequences were equally long.
    """

    tasks: Sequence[StepTask]
    measured_s: float
    num_workers: int
    durations_s: Floats
    typical_s: Floats
    even_s: Floats

    @cached_property
    def program(self) -> Program:
        """The program with the recorded durations."""
        return Program.of(
            Task(task.name, task.stream, duration_s, (*dict.fromkeys(task.after),))
            for task, duration_s in zip(self.tasks, self.durations_s.tolist(), strict=True)
        )

    @cached_property
    def replay(self) -> tuple[Floats, Floats]:
        """[tasks], starts and ends with the recorded durations.

        Raises:
            InputError: workers wait for each other in a circle (E869).
        """
        try:
            timeline = simulate(self.program)
        except DeadlockError as error:
            heads = [wait.head for wait in error.cycle]
            circle = " waits for the ".join(
                [*heads[:4], heads[0]] if heads[4:] else [*heads, heads[0]]
            )
            place = next(task.place for task in self.tasks if task.name == heads[0])
            message = f"the workers can never continue: the {circle}"
            reason = "each op waits for the ops that its workers started before"
            fix = "write the start of each op as its worker recorded it, of one step alone"
            raise InputError.of("E869", message, place, fix, reason) from None
        return timeline.start_s, timeline.end_s

    @property
    def time_s(self) -> float:
        """Time of the step with the recorded durations."""
        return float(self.replay[1].max())

    @cached_property
    def is_critical(self) -> Flags:
        """[tasks], whether it is on a path of tasks, each begun by the last one's end."""
        (start_s, end_s), graph = self.replay, self.program.graph
        is_critical = np.zeros(len(self.tasks), np.bool_)
        number = int(end_s.argmax())
        while number >= 0:
            is_critical[number] = True
            before = [*graph.waits(number), int(graph.previous[number])]
            ended = (each for each in before if each >= 0 and end_s[each] == start_s[number])
            number = next(ended, -1)
        return is_critical

    @property
    def largest_pass_error(self) -> float:
        """The largest difference of a pass's start or end from the trace, in steps."""
        start_s, end_s = self.replay
        errors = [0.0]
        for number, task in enumerate(self.tasks):
            if task.recorded_s:
                errors.append(abs(start_s[number] - task.recorded_s[0]))
                errors.append(abs(end_s[number] - task.recorded_s[1]))
        return float(max(errors)) / self.measured_s

    def step_s(self, usual_s: Floats, changed: Sequence[tuple[Sequence[int], Floats]]) -> Floats:
        """[changes], time of the step with the durations of some tasks changed.

        Args:
            usual_s: [tasks], durations of all other tasks.
            changed: of each change its tasks, and [tasks] the durations that these take.
        """
        times = np.empty(len(changed))
        size = max(1, _MOST_DRAWN // len(usual_s))
        for first in range(0, len(changed), size):
            block = changed[first : first + size]
            drawn_s = np.repeat(usual_s[None], len(block), axis=0)
            for draw, (tasks, durations_s) in enumerate(block):
                drawn_s[draw, tasks] = durations_s[tasks]
            ends_s = simulate(Program(self.program.graph, drawn_s)).end_s
            times[first : first + size] = ends_s.max(axis=1)
        return times


class StepBuilder:
    """Collects the tasks of a step, worker by worker."""

    def __init__(self) -> None:
        self._tasks: list[StepTask] = []
        self._of_key: dict[Hashable, int] = {}
        self._expected: list[int] = []

    def add(
        self,
        key: Hashable,
        num_workers: int,
        duration_s: float,
        after: Iterable[int],
        task: StepTask,
    ) -> int:
        """Add an op of a worker; return the number of its task.

        Args:
            key: equal for the ops of all workers that meet.
            num_workers: how many meet.
            duration_s: as this worker recorded it.
            after: tasks before it.
            task: what it is, if this is its first worker.
        """
        number = self._of_key.setdefault(key, len(self._tasks))
        if number == len(self._tasks):
            self._tasks.append(task)
            self._expected.append(num_workers)
        self._tasks[number].durations_s.append(duration_s)
        self._tasks[number].after.extend(after)
        return number

    def finish(
        self,
        measured_s: float,
        num_workers: int,
        typical: Callable[[Floats], tuple[Floats, Floats]],
    ) -> TracedStep:
        """Return the step; `typical` returns its typical and its even durations.

        Raises:
            InputError: a transfer or a collective lacks a worker (E868), or the step takes no time
                (E866).
        """
        for task, expected in zip(self._tasks, self._expected, strict=True):
            present = len(task.durations_s)
            if present != expected:
                message = f"the {task.name} has {present} of {expected} workers"
                reason = "a transfer or a collective waits for all of its workers"
                fix = "give the ops of all workers of the step, each once"
                raise InputError.of("E868", message, task.place, fix, reason)
        if not measured_s > 0:
            place = Location(self._tasks[0].place.file)
            raise InputError.of("E866", "the step takes no time", place, "write times in seconds")
        durations_s = np.array([min(task.durations_s) for task in self._tasks])
        return TracedStep(self._tasks, measured_s, num_workers, durations_s, *typical(durations_s))
