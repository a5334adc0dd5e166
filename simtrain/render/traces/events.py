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
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import Activity, Spans, StageStream, activity_of
from simtrain.render.traces.passes import PassSlices
from simtrain.render.traces.slices import (
    SEND_THREADS,
    STAGE_THREAD,
    THREAD_OF,
    Arrow,
    Slice,
    SliceKind,
    nanoseconds,
)
from simtrain.schedules import Messages

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
        used = THREAD_OF[self._by_stage[stage].stream].tolist()
        return sorted({*used, *self.inside.threads})

    def slices(self, stage: int) -> Iterator[Slice]:
        """Yield the slices of a stage's rank, in order of time within a thread."""
        (starts, ends), communication = self._times_ns, []
        spans, part_of = self._by_stage[stage], self.result.iteration.tasks.part_of
        kinds = [self._kinds[part] for part in part_of[spans.task].tolist()]
        for task, thread, kind in zip(*_threaded(spans), kinds, strict=True):
            yield Slice(thread, kind, self._names[task], starts[task], ends[task], task)
            if kind is SliceKind.COLLECTIVE and thread != STAGE_THREAD:
                communication.append(task)
        yield from self.inside.of_stage(spans, communication)

    def arrows(self, stage: int) -> Iterator[Arrow]:
        """Yield an arrow for each transfer that a stage sends."""
        messages, starts = Messages.of(self.result.plan.schedule), self._times_ns[0]
        consumers = self.result.iteration.tasks.first[messages.consumer].tolist()
        receivers = messages.receiver.tolist()
        for task, thread in zip(*_threaded(self._by_stage[stage]), strict=True):
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
        spans = self._by_stage[stage]
        spans = spans.where(spans.stream == StageStream.OWN)
        rates = self._rates_percent[self.result.iteration.tasks.part_of[spans.task]]
        times = np.stack([spans.start_s, spans.end_s], axis=1).ravel()
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
    def _kinds(self) -> list[SliceKind]:
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
    def _by_stage(self) -> list[Spans]:
        """[stages] spans of each stage."""
        return [*map(self.result.spans.of_stage, range(self.result.num_stages))]


def _threaded(spans: Spans) -> tuple[list[int], list[int]]:
    """Return the tasks of spans, and their threads."""
    return spans.task.tolist(), THREAD_OF[spans.stream].tolist()


def _kind_of(part: IterationPart) -> SliceKind:
    match part:
        case PassPart():
            return SliceKind.PASS
        case SynchronizationPart():
            return SliceKind.HOST_WORK
    communicates = activity_of(part) in (Activity.TRANSFER, Activity.REDUCTION)
    return SliceKind.COLLECTIVE if communicates else SliceKind.KERNEL


def _counter(times_s: Floats, values: NDArray[np.generic]) -> Counter:
    """Keep the last value at each nanosecond, and only values that differ from the previous."""
    times_ns = nanoseconds(times_s)
    is_last = np.append(times_ns[1:] > times_ns[:-1], True)
    times_ns, values = times_ns[is_last], values[is_last]
    changes = np.append(True, values[1:] != values[:-1])
    return times_ns[changes].tolist(), values[changes].tolist()
