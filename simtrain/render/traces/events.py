"""Content of a trace in any format: slices on threads, arrows and counters.

A pass is one slice on its stage's thread. On separate threads it shows its launches, kernels and
collectives, or their sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simtrain.engine.compiled import Floats
from simtrain.iteration.programs.parts import IterationPart, PassPart, SynchronizationPart
from simtrain.iteration.programs.seconds import pass_flops, whole_pass
from simtrain.iteration.report.activities import REDUCTION, TRANSFER, activity_of, shared_stages
from simtrain.iteration.report.result import Result
from simtrain.render.traces.passes import PassSlices
from simtrain.render.traces.slices import (
    GROUPS,
    SEND_THREADS,
    STAGE_THREAD,
    THREADS,
    Arrow,
    Kind,
    Slice,
    nanoseconds,
)
from simtrain.schedules import Messages
from simtrain.schedules.stage_placement import ring_neighbour

Counter: TypeAlias = tuple[list[int], list[float]]
"""Times in nanoseconds, and the value from each time on."""


@dataclass(frozen=True, eq=False)
class TraceEvents:
    """Content of an iteration's trace.

    Args:
        result: the iteration.
        inside: the slices inside its passes.
    """

    result: Result
    inside: PassSlices

    def place(self, stage: int) -> tuple[int, int, int]:
        """Return the simulated rank of a stage (its first), the rank's node, and its GPU there."""
        rank = stage * self.result.plan.mesh.stride("pp")
        return rank, *divmod(rank, self.result.plan.mesh.gpus_per_node)

    def threads(self, stage: int) -> list[int]:
        """Return the threads of a stage's rank."""
        used = {thread for _, thread in self._by_stage[stage]}
        return sorted(used.union(self.inside.threads))

    def slices(self, stage: int) -> Iterator[Slice]:
        """Yield the slices of a stage's rank, in order of time within a thread."""
        (starts, ends), communication = self._times_ns, []
        kinds, part_of = self._kinds, self.result.iteration.tasks.part_of.tolist()
        for task, thread in self._by_stage[stage]:
            kind = kinds[part_of[task]]
            yield Slice(thread, kind, self._names[task], starts[task], ends[task], task)
            if kind is Kind.COLLECTIVE and thread != STAGE_THREAD:
                communication.append(task)
        yield from self.inside.of_stage(stage, communication)

    def arrows(self, stage: int) -> Iterator[Arrow]:
        """Yield an arrow for each transfer that a stage sends."""
        messages, starts = Messages.of(self.result.plan.schedule), self._times_ns[0]
        consumers = self.result.iteration.tasks.first[messages.consumer].tolist()
        receivers = messages.receiver.tolist()
        for task, thread in self._by_stage[stage]:
            # Tasks of messages come first, so a message has the number of its task. Norms that
            # travel along the pipeline are no messages of the schedule.
            if thread in SEND_THREADS and task < len(consumers):
                end = consumers[task]
                yield Arrow(task, end, thread, receivers[task], starts[task], starts[end])

    def memory_bytes(self, stage: int) -> Counter:
        """Return the memory of a stage's rank over time."""
        curve = self.result.memory_curve(stage)
        return _counter(np.array(curve.times_s), np.array(curve.held_bytes))

    def utilization_percent(self, stage: int) -> Counter:
        """Return the FLOPs per second of the running pass, relative to the bf16 peak.

        Recomputed FLOPs count. The mean over the iteration and the stages is HFU.
        """
        result, timeline = self.result, self.result.timeline
        starts, queue = timeline.program.graph.queue
        of_stage = queue[starts[stage] : starts[stage + 1]]
        rates = self._rates_percent[result.iteration.tasks.part_of[of_stage]]
        times = np.stack([timeline.start_s[of_stage], timeline.end_s[of_stage]], axis=1).ravel()
        values = np.stack([rates, np.zeros(len(rates))], axis=1).ravel()
        return _counter(np.append(0.0, times), np.append(0.0, values))

    def critical_path(self) -> Iterator[Slice]:
        """Yield the slices of the critical path in order. Their names contain the stream."""
        timeline, (starts, ends) = self.result.timeline, self._times_ns
        kinds, part_of = self._kinds, self.result.iteration.tasks.part_of
        for task in timeline.critical_tasks():
            name = f"{self._names[task]} ({timeline.program.graph.stream(task)})"
            yield Slice(0, kinds[part_of[task]], name, starts[task], ends[task], task)

    @cached_property
    def _times_ns(self) -> tuple[list[int], list[int]]:
        timeline = self.result.timeline
        return nanoseconds(timeline.start_s).tolist(), nanoseconds(timeline.end_s).tolist()

    @cached_property
    def _names(self) -> list[str]:
        graph = self.result.timeline.program.graph
        return [*map(graph.name_of, range(graph.num_tasks))]

    @cached_property
    def _kinds(self) -> list[Kind]:
        """[parts] kind of slice."""
        return [*map(_kind_of, self.result.iteration.tasks.parts)]

    @cached_property
    def _rates_percent(self) -> Floats:
        """[parts] utilization while the part runs; 0 if the part is not a pass."""
        seconds, parts = self.result.seconds, self.result.iteration.tasks.parts
        rates = np.zeros(len(parts))
        for place, part in enumerate(parts):
            if isinstance(part, PassPart):
                whole_s = seconds.passes[whole_pass(part)].duration_s
                rates[place] = pass_flops(seconds.pass_of(part))[1] / whole_s if whole_s else 0.0
        return 100 * rates / self.result.profile.gpu.peak_flops.value

    @cached_property
    def _by_stage(self) -> list[list[tuple[int, int]]]:
        """[stages] tasks with their threads. Tasks of several stages are listed for each."""
        num_stages, graph = self.result.num_stages, self.result.timeline.program.graph
        tasks_of: list[list[tuple[int, int]]] = [[] for _ in range(num_stages)]
        groups = [[(step, THREADS.index(name)) for step, name in group] for group in GROUPS]
        for task, stream in enumerate(graph.stream_of.tolist()):
            group, stage = divmod(stream, num_stages)
            if group < len(groups):
                for step, thread in groups[group]:
                    tasks_of[ring_neighbour(stage, step, num_stages)].append((task, thread))
            else:
                name = graph.streams[stream]
                for member in shared_stages(self.result, name):
                    tasks_of[member].append((task, THREADS.index(name)))
        return tasks_of


def _kind_of(part: IterationPart) -> Kind:
    match part:
        case PassPart():
            return Kind.PASS
        case SynchronizationPart():
            return Kind.HOST_WORK
    return Kind.COLLECTIVE if activity_of(part) in (TRANSFER, REDUCTION) else Kind.KERNEL


def _counter(times_s: Floats, values: NDArray[np.generic]) -> Counter:
    """Keep the last value at each nanosecond, and only values that differ from the previous."""
    times_ns = nanoseconds(times_s)
    is_last = np.append(times_ns[1:] > times_ns[:-1], True)
    times_ns, values = times_ns[is_last], values[is_last]
    changes = np.append(True, values[1:] != values[:-1])
    return times_ns[changes].tolist(), values[changes].tolist()
