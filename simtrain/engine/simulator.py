"""Runs a program with SimPy: one process per stream. The reference for the loops over arrays."""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import inf

import numpy as np
from simpy import Environment, Event
from simpy.events import EventPriority

from simtrain.engine.program import Program
from simtrain.engine.sharing import Shares, find_stretches

_Process = Generator[Event, None, None]


def simulate_events(program: Program, duration_s: list[float]) -> tuple[list[float], list[float]]:
    """Find when each task starts and ends; infinite for one that can never start.

    A task starts when the task before it on its stream and all that it waits for have ended. Which
    of several tasks with the same start SimPy wakes first follows from the order of the streams,
    then from the order in which they were woken: it is the same in every run, and no time depends
    on it.
    """
    simulation = _Simulation(program, duration_s)
    simulation.env.run()
    return simulation.start_s, simulation.end_s


class _Simulation:
    def __init__(self, program: Program, duration_s: list[float]) -> None:
        graph, shares = program.graph, program.shares
        self.duration_s = duration_s
        self.env = Environment(initial_time=0.0)
        self.start_s = [inf] * graph.num_tasks
        self.end_s = [inf] * graph.num_tasks
        self.after_starts = graph.after_starts.tolist()
        self.after = graph.after.tolist()
        self.sharing = _Sharing(self.env, shares) if shares else None
        # Only tasks that another stream is waiting for right now have an event.
        self.awaited: dict[int, Event] = {}
        for number, queue in enumerate(np.split(graph.queue, graph.queue_starts[1:-1])):
            if len(queue):
                self.env.process(self.run_stream(number, queue.tolist()))

    def run_stream(self, stream: int, queue: list[int]) -> _Process:
        """Run the tasks of a stream one after another, each when what it waits for has ended."""
        for task in queue:
            for other in self.after[self.after_starts[task] : self.after_starts[task + 1]]:
                if self.end_s[other] == inf:
                    yield self.end_of(other)
            self.start_s[task] = self.env.now
            if self.sharing and self.sharing.has_loads(task) and self.duration_s[task] > 0:
                yield self.sharing.start(stream, task, self.duration_s[task])
            elif self.duration_s[task] > 0:
                yield self.env.timeout(self.duration_s[task])
            self.end_s[task] = self.env.now
            if task in self.awaited:
                self.awaited.pop(task).succeed()

    def end_of(self, task: int) -> Event:
        """The event that a waiting stream leaves for the stream that runs the task."""
        if task not in self.awaited:
            self.awaited[task] = self.env.event()
        return self.awaited[task]


class _Work:
    """A running task with loads, and what was left of it when its speed last changed."""

    def __init__(self, env: Environment, task: int, duration_s: float) -> None:
        self.task = task
        self.left_s, self.begun_s, self.stretch = duration_s, env.now, 1.0
        self.num_changes = 0
        self.done = env.event()


class _Settling(Event):
    """Comes after everything else that happens at this moment."""

    def __init__(self, env: Environment, settle: Callable[[Event], None]) -> None:
        super().__init__(env)
        self.callbacks = [settle]
        self._ok, self._value = True, None
        env.schedule(self, EventPriority(9))


class _Sharing:
    """The running tasks with loads, by stream."""

    def __init__(self, env: Environment, shares: Shares) -> None:
        self.env = env
        self.shares = shares
        self.running: dict[int, _Work] = {}
        self.settling: _Settling | None = None

    def has_loads(self, task: int) -> bool:
        """Whether a task takes anything of a link."""
        starts = self.shares.load_starts
        return bool(starts[task] < starts[task + 1])

    def start(self, stream: int, task: int, duration_s: float) -> Event:
        """Run a task; the event is its end."""
        work = self.running[stream] = _Work(self.env, task, duration_s)
        self.change()
        return work.done

    def change(self) -> None:
        """Find the speeds anew when all that starts and ends at this moment has done so."""
        self.settling = self.settling or _Settling(self.env, self.settle)

    def settle(self, settling: Event) -> None:
        """Let tasks whose speed has changed go on at the new one."""
        self.settling = None
        streams = sorted(self.running)
        stretches = find_stretches(*self.shares, [self.running[stream].task for stream in streams])
        for stream, stretch in zip(streams, stretches, strict=True):
            work = self.running[stream]
            if stretch != work.stretch or not work.num_changes:
                self.env.process(self.work(stream, work, stretch))

    def work(self, stream: int, work: _Work, stretch: float) -> _Process:
        """Go on at another speed, until the end or the next change."""
        work.left_s -= (self.env.now - work.begun_s) / work.stretch
        work.begun_s, work.stretch = self.env.now, stretch
        work.num_changes = num_changes = work.num_changes + 1
        yield self.env.timeout(max(work.left_s, 0.0) * stretch)
        if work.num_changes == num_changes:
            del self.running[stream]
            self.change()
            work.done.succeed()
