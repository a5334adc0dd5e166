"""Content of a trace in any format: slices on threads, arrows and counters.

A pass is one slice on its stage's thread. On separate threads it shows its launches, kernels and
collectives, or few intervals with their sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from simtrain.engine.compiled import Flags, Floats
from simtrain.iteration.programs.parts import IterationPart, PassPart, SynchronizationPart
from simtrain.iteration.programs.pass_tasks import COMMUNICATION, COMPUTE, STREAMS
from simtrain.iteration.programs.seconds import pass_flops, whole_pass
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import Activity, Spans, StageStream, activity_of
from simtrain.iteration.report.stage_kernels import PassKernels
from simtrain.render.traces.slices import (
    KINDS,
    PASS_THREADS,
    SEND_THREADS,
    STAGE_THREAD,
    THREAD_OF,
    THREADS,
    Arrow,
    PassSums,
    Slice,
    SliceKind,
    nanoseconds,
    sum_up,
)
from simtrain.schedules import Messages
from simtrain.workload.ops import Op
from simtrain.workload.work import Collective, HostWork

_PASS_NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "reduction",
    "D": "deferred weight gradient",
}
_SUMS = {
    SliceKind.KERNEL: (THREADS.index(COMPUTE), "compute"),
    SliceKind.COLLECTIVE: (THREADS.index(COMMUNICATION), "communication"),
    SliceKind.COPY: (THREADS.index(COMMUNICATION), "copies"),
}
"""Thread and name of the intervals of each kind."""
SUM_THREADS = sorted({thread for thread, _ in _SUMS.values()})


@dataclass(frozen=True, slots=True, eq=False)
class _Inside:
    """The inside of a pass: its launches and kernels, the kinds of these, and their sums."""

    kernels: PassKernels
    kinds: list[SliceKind]
    sums: PassSums


@dataclass(frozen=True, eq=False)
class PassSlices:
    """The slices inside the passes of an iteration.

    Args:
        result: the iteration.
        detailed: [passes], whether a pass shows its kernels. The others show their sums.
    """

    result: Result
    detailed: Flags
    _inside: dict[PassPart, _Inside] = field(default_factory=dict, repr=False)

    @property
    def threads(self) -> list[int]:
        """Threads of the slices."""
        return PASS_THREADS if self.detailed.any() else SUM_THREADS

    def of_stage(self, spans: Spans, communication: list[int]) -> Iterator[Slice]:
        """Yield the slices inside the passes of a stage, in order of time within a thread.

        Args:
            spans: those of the stage.
            communication: tasks of the iteration that communicate on its other streams.
        """
        of_passes = spans.where(spans.pass_number >= 0)
        is_detailed = self.detailed[of_passes.pass_number]
        sums = self._sums(of_passes.where(~is_detailed), communication)
        for number in np.unique(of_passes.pass_number).tolist():
            yield from self._details(number) if self.detailed[number] else sums[number]

    def _details(self, number: int) -> Iterator[Slice]:
        """Yield launches, kernels and collectives of a pass."""
        passes = self.result.passes
        tasks = slice(int(passes.first[number]), int(passes.last[number]) + 1)
        inside = self._inside_of(self._whole(self.result.iteration.tasks.part_of[tasks.start]))
        starts, ends = (
            nanoseconds(times_s).tolist()
            for times_s in inside.kernels.times_in(self.result.timeline, tasks)
        )
        first_number, graph = self._first_number(number), inside.kernels.timeline.program.graph
        for task, stream in enumerate(graph.stream_of.tolist()):
            thread, name = THREADS.index(STREAMS[stream]), graph.name_of(task)
            # The tasks of an op are its launch and itself; both have the number of the op.
            of_op, is_launch = task // 2, task % 2 == 0
            kind = SliceKind.LAUNCH if is_launch else inside.kinds[of_op]
            collective = None if is_launch else _collective(inside.kernels.ops[of_op])
            times = starts[task], ends[task]
            yield Slice(thread, kind, name, *times, first_number + of_op, collective)

    def _sums(self, spans: Spans, communication: list[int]) -> dict[int, list[Slice]]:
        """Return the sums of passes of a stage, by pass."""
        timeline, part_of = self.result.timeline, self.result.iteration.tasks.part_of
        parts, of_part = np.unique(part_of[spans.task], return_inverse=True)
        wholes = [self._whole(part) for part in parts.tolist()]
        different = [*dict.fromkeys(wholes)]
        # The spans of a pass follow one another.
        passes, first, place = np.unique(spans.pass_number, return_index=True, return_inverse=True)
        before_s = np.append(0.0, np.cumsum(timeline.program.duration_s[spans.task]))[:-1]
        sum_of = np.array([different.index(whole) for whole in wholes], np.int32)[of_part]
        offset_s = before_s - before_s[first][place]
        sums = [self._inside_of(whole).sums for whole in different]
        outside = np.stack([timeline.start_s[communication], timeline.end_s[communication]], axis=1)
        seconds = sum_up(spans, sum_of, offset_s, sums, outside)
        names = [_name_of(wholes[part]) for part in of_part[first].tolist()]
        name_of = dict(zip(passes.tolist(), names, strict=True))
        slices: dict[int, list[Slice]] = {owner: [] for owner in name_of}
        for kind, intervals in zip(KINDS, seconds, strict=True):
            thread, what = _SUMS[kind]
            for owner, start_ns, end_ns in zip(*intervals, strict=True):
                of_owner, name = slices[owner], f"{name_of[owner]} {what}"
                number = self._first_number(owner) + len(of_owner)
                of_owner.append(Slice(thread, kind, name, start_ns, end_ns, number))
        for of_owner in slices.values():  # communication and copies share a thread
            of_owner.sort(key=attrgetter("start_ns"))
        return slices

    def _whole(self, part: int) -> PassPart:
        return whole_pass(cast(PassPart, self.result.iteration.tasks.parts[part]))

    def _inside_of(self, whole: PassPart) -> _Inside:
        if whole not in self._inside:
            kernels = PassKernels.of(self.result.seconds, whole)
            kinds, timeline = [*map(_kind_of_op, kernels.ops)], kernels.timeline
            sums = PassSums.of(timeline.start_s[1::2], timeline.end_s[1::2], kinds)
            self._inside[whole] = _Inside(kernels, kinds, sums)
        return self._inside[whole]

    def _first_number(self, pass_number: int) -> int:
        # A pass has fewer than 2**20 slices.
        return self.result.timeline.program.num_tasks + (pass_number << 20)


def _name_of(part: PassPart) -> str:
    return _PASS_NAMES[part.kind] + (f" and {_PASS_NAMES[part.beside.kind]}" if part.beside else "")


def _collective(op: Op) -> tuple[str, int] | None:
    if isinstance(op.work, Collective):
        return op.work.kind.value, op.work.group.num_ranks
    return None


def _kind_of_op(op: Op) -> SliceKind:
    if isinstance(op.work, Collective):
        return SliceKind.COLLECTIVE
    is_copy = op.stream_group is not None or isinstance(op.work, HostWork)
    return SliceKind.COPY if is_copy else SliceKind.KERNEL


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
        return [*map(self.result.spans.of_stage, range(self.result.num_stages))]


def _threaded(spans: Spans) -> tuple[list[int], list[int]]:
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
