"""Runs a program with compiled loops or SimPy, which agree to the bit, and finds deadlocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np

from simtrain.base.extras import require
from simtrain.base.values import dataclass
from simtrain.engine.compiled import Flags, Floats, Ints, run_loop, runs_compiled
from simtrain.engine.program import Program, TaskGraph, find_longest_paths
from simtrain.engine.sharing import run_sharing
from simtrain.engine.timeline import Timeline, idle_seconds
from simtrain.errors import InputError, SimtrainError

# Deadlocks: which streams wait for which, when no task can start.


@dataclass(frozen=True, slots=True)
class Wait:
    """A stuck stream, its next task, and the streams of the tasks that this waits for."""

    stream: str
    head: str
    blockers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.head!r} on {self.stream}"


class DeadlockError(SimtrainError):
    """Some tasks can never start.

    `waits` contains all stuck streams in the order of the program. `cycle` contains streams of
    which each waits for the next, and the last for the first.
    """

    def __init__(self, waits: Sequence[Wait]) -> None:
        self.waits = tuple(waits)
        self.cycle = _cycle(self.waits)
        super().__init__(self.waits)

    def __str__(self) -> str:
        circle = " -> ".join(map(str, (*self.cycle, self.cycle[0])))
        number = len(self.waits)
        return f"deadlock: {number} streams can never continue; each waits for the next: {circle}"


def find_waits(graph: TaskGraph, is_unfinished: Flags) -> Iterator[Wait]:
    """List the stuck streams with the tasks that they wait for."""
    for stream, queue in graph.queues().items():
        if head := [index for index in queue if is_unfinished[index]][:1]:
            awaited = [index for index in graph.waits(head[0]) if is_unfinished[index]]
            yield Wait(stream, graph.name_of(head[0]), tuple(map(graph.stream, awaited)))


def _cycle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Follow the waits until a stream repeats.

    A stuck stream waits for an unfinished task, on a stream that is stuck too. So the walk does not
    end before it repeats.
    """
    by_stream = {wait.stream: wait for wait in waits}
    path = [waits[0]]
    while (following := by_stream[path[-1].blockers[0]]) not in path:
        path.append(following)
    return tuple(path[path.index(following) :])


Engine = Literal["auto", "simpy", "compiled"]
_ENGINES = get_args(Engine)


def simulate(program: Program, engine: Engine = "auto") -> Timeline:
    """Simulate a program: find when each task starts and ends.

    Args:
        program: the tasks.
        engine: `compiled` runs loops over arrays that numba compiles; `simpy` is the reference;
            `auto` runs the same loops as plain Python until numba has paid off (`runs_compiled`).

    Raises:
        DeadlockError: some tasks can never start.
        InputError: the engine does not exist (E504), or `compiled` needs numba (E701).
    """
    if engine == "simpy":
        from simtrain.engine.simulator import simulate_events

        timeline = Timeline(program, np.array(simulate_events(program)))
    else:
        is_compiled = runs_loops_compiled(engine, program.num_tasks)
        timeline = run_loops(program, is_compiled=is_compiled)
    if timeline.makespan_s == np.inf:
        raise DeadlockError(tuple(find_waits(program.graph, np.isinf(timeline.end_s))))
    return timeline


def runs_loops_compiled(engine: Engine, num_tasks: int = 0) -> bool:
    """Return whether an engine compiles loops, when `num_tasks` tasks are simulated next."""
    if engine not in _ENGINES:
        raise InputError.of("E504", f"engine is {engine!r}", fix=f"write {' or '.join(_ENGINES)}")
    if engine == "compiled":
        instead = ", or write auto, which then runs the same loops uncompiled"
        require("engine compiled", "numba", instead=instead)
    return engine == "compiled" or runs_compiled(num_tasks)


def find_idle_seconds(
    timeline: Timeline, streams: Ints, others: Ints, category_of: Ints, engine: Engine
) -> Floats:
    """Return the time for which streams are idle while others run (`idle_seconds`)."""
    times = timeline.start_s, timeline.end_s, np.float64(timeline.makespan_s)
    arrays = streams, others, category_of, *timeline.program.graph.queue, *times
    idle_s: Floats = run_loop(idle_seconds, arrays, is_compiled=runs_loops_compiled(engine))
    return idle_s


def run_loops(program: Program, *, is_compiled: bool) -> Timeline:
    """Return the times of all tasks; infinity if a task never starts or ends."""
    graph, times_s = program.graph, np.empty((2, program.num_tasks))
    if program.link_loads or len(graph.order) < program.num_tasks:
        times_s.fill(np.inf)  # otherwise each element is written
    if program.link_loads is None:
        number_of = graph.kinds_in_order if program.of_kinds else graph.order
        paths = *graph.waits_in_order, number_of, program.seconds
        run_loop(find_longest_paths, paths, (*times_s,), is_compiled=is_compiled)
        return Timeline(program, times_s, in_order=not graph.is_in_order)
    tasks = *graph.queue, graph.num_waits, *graph.followers, graph.stream_of, program.link_loads
    run_loop(run_sharing, (*tasks, program.duration_s), (*times_s,), is_compiled=is_compiled)
    return Timeline(program, times_s)
