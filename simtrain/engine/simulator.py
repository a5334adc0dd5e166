"""Runs a program with SimPy: one process per stream."""

from collections.abc import Generator, Sequence
from math import inf

from simpy import Environment, Event

from simtrain.engine.program import Interference, Program
from simtrain.engine.timeline import Timeline

_Process = Generator[Event, None, None]


def simulate_events(program: Program) -> Timeline:
    """Find when each task starts and ends; a task that can never start is left with infinite times.

    A task starts when the task before it on its stream and all tasks in `after` have ended.
    Which of several tasks with the same start SimPy wakes first follows from the order of the
    streams' first tasks in the program, then from the order in which they were woken: it is the
    same in every run, and no time depends on it.
    """
    simulation = _Simulation(program)
    simulation.run()
    return Timeline(program, tuple(simulation.start_s), tuple(simulation.end_s))


class _Simulation:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.env = Environment(initial_time=0.0)
        self.start_s = [inf] * len(program.tasks)
        self.end_s = [inf] * len(program.tasks)
        # Only tasks that another stream is waiting for right now have an event.
        self.awaited: dict[int, Event] = {}
        self.contenders = {
            aggressor: _Contender(self.env)
            for interference in program.interference.values()
            for aggressor in interference.aggressors
        }

    def run(self) -> None:
        for stream, queue in self.program.queues().items():
            self.env.process(self.run_stream(stream, queue))
        self.env.run()

    def run_stream(self, stream: str, queue: Sequence[int]) -> _Process:
        env, tasks, start_s, end_s = self.env, self.program.tasks, self.start_s, self.end_s
        slowed_by = self.program.interference.get(stream)
        contender = self.contenders.get(stream)
        for index in queue:
            task = tasks[index]
            for other in task.after:
                if end_s[other] == inf:
                    yield self.end_of(other)
            start_s[index] = env.now
            if contender is not None:
                contender.switch(task.contends)
            if slowed_by is not None:
                yield from self.work(task.duration_s, slowed_by)
            elif task.duration_s > 0:
                yield env.timeout(task.duration_s)
            if contender is not None:
                contender.switch(False)
            end_s[index] = env.now
            if index in self.awaited:
                self.awaited.pop(index).succeed()

    def end_of(self, index: int) -> Event:
        """The event that a waiting stream leaves for the stream that runs the task."""
        if index not in self.awaited:
            self.awaited[index] = self.env.event()
        return self.awaited[index]

    def work(self, duration_s: float, slowed_by: Interference) -> _Process:
        """Do `duration_s` of work, at the speed that the aggressors leave at each moment."""
        env = self.env
        aggressors = [self.contenders[stream] for stream in slowed_by.aggressors]
        while duration_s > 0:
            contended = any(aggressor.contends for aggressor in aggressors)
            stretch = 1 + slowed_by.slowdown if contended else 1.0
            begun_s = env.now
            finish = env.timeout(duration_s * stretch)
            yield env.any_of([finish, *(aggressor.switched for aggressor in aggressors)])
            if finish.processed:
                return
            duration_s -= (env.now - begun_s) / stretch


class _Contender:
    """Whether a contending task runs on an aggressor stream, and the event of its next change."""

    def __init__(self, env: Environment) -> None:
        self.contends = False
        self.switched = env.event()

    def switch(self, contends: bool) -> None:
        if contends != self.contends:
            self.contends = contends
            switched, self.switched = self.switched, self.switched.env.event()
            switched.succeed()
