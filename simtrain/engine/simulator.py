"""Runs a program with SimPy, one process per stream: the reference for the loops over arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from math import inf
from typing import cast

import numpy as np
from simpy import Environment, Event, Interrupt
from simpy.events import EventPriority

from simtrain.engine.program import Program
from simtrain.engine.sharing import LinkLoads, find_slowdowns

_Process = Generator[Event, None, None]
_LAST = EventPriority(9)
"""Priority of events that run after all others of the same moment."""


def simulate_events(program: Program) -> tuple[list[float], list[float]]:
    """Return the starts and ends of all tasks; infinite for a task that can never start.

    A task starts when the task before it on its stream and all tasks that it waits for have ended.
    The order in which SimPy wakes tasks of the same moment is deterministic and affects no time.
    """
    simulation = _Simulation(program)
    simulation.env.run()
    return simulation.start_s, simulation.end_s


class _Simulation:
    def __init__(self, program: Program) -> None:
        graph = program.graph
        links = program.link_loads
        self.link_loads = cast(LinkLoads, links)  # read only when tasks with loads run
        self.num_loads = np.diff(links.load_starts).tolist() if links else [0] * graph.num_tasks
        self.duration_s = program.duration_s.tolist()
        self.env = Environment(initial_time=0.0)
        self.start_s = [inf] * graph.num_tasks
        self.end_s = [inf] * graph.num_tasks
        self.after_starts = graph.after_starts.tolist()
        self.after = graph.after.tolist()
        # Only tasks for which another stream is waiting now have an event.
        self.awaited = defaultdict[int, Event](self.env.event)
        # Running tasks with loads, and their slowdowns, by stream.
        self.sharing: dict[int, int] = {}
        self.slowdowns: dict[int, float] = {}
        self.is_settling = False
        starts, queue = graph.queue
        self.processes = [
            self.env.process(self.run_stream(stream, queue.tolist()))
            for stream, queue in enumerate(np.split(queue, starts[1:-1]))
        ]

    def run_stream(self, stream: int, queue: list[int]) -> _Process:
        """Run the tasks of a stream in order, each after the tasks that it waits for."""
        for task in queue:
            for other in self.after[self.after_starts[task] : self.after_starts[task + 1]]:
                if self.end_s[other] == inf:
                    yield self.awaited[other]
            self.start_s[task] = self.env.now
            if self.num_loads[task] and self.duration_s[task] > 0:
                yield from self.share(stream, task)
            elif self.duration_s[task] > 0:
                yield self.env.timeout(self.duration_s[task])
            self.end_s[task] = self.env.now
            if task in self.awaited:
                self.awaited.pop(task).succeed()

    def share(self, stream: int, task: int) -> _Process:
        """Run a task with loads. An interrupt tells it its new slowdown."""
        left_s, begun_s, slowdown = self.duration_s[task], self.env.now, inf
        self.sharing[stream], self.slowdowns[stream] = task, slowdown
        self.change_speeds()
        end = self.env.event()
        while not end.processed:
            try:
                yield end
            except Interrupt as change:
                left_s -= (self.env.now - begun_s) / slowdown
                begun_s, slowdown = self.env.now, cast(float, change.cause)
                end = self.env.timeout(max(left_s, 0.0) * slowdown)
        del self.sharing[stream]
        self.change_speeds()

    def change_speeds(self) -> None:
        """Schedule new speeds after all starts and ends of this moment."""
        if not self.is_settling:
            self.is_settling = True
            settling = self.env.event()
            settling.callbacks = [self.settle]
            settling._ok, settling._value = True, None
            self.env.schedule(settling, _LAST)

    def settle(self, settling: Event) -> None:
        """Compute all speeds, and interrupt tasks whose speed has changed."""
        self.is_settling = False
        streams = sorted(self.sharing)
        tasks = [self.sharing[stream] for stream in streams]
        for stream, slowdown in zip(streams, find_slowdowns(self.link_loads, tasks), strict=True):
            if slowdown != self.slowdowns[stream]:
                self.slowdowns[stream] = slowdown
                self.processes[stream].interrupt(slowdown)
