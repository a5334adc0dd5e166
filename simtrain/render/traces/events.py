"""Content of a trace: slices on threads, and memory over time.

A pass is one slice on its stage's thread. Chosen passes also show their launches, kernels and
collectives, on separate threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from simtrain.base.values import dataclass, field
from simtrain.engine.compiled import Flags, Floats
from simtrain.iteration.plan import PassVariant
from simtrain.iteration.programs.iteration_tasks import EMBEDDING, MODEL
from simtrain.iteration.programs.parts import IterationPart, PassPart, SynchronizationPart
from simtrain.iteration.programs.pass_tasks import HOST, STREAMS
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import Activity, Spans, StageStream, activity_of
from simtrain.iteration.report.stage_kernels import PassKernels
from simtrain.workload.ops import Op
from simtrain.workload.work import Collective, HostWork

Nanoseconds: TypeAlias = NDArray[np.int64]

_OF_STAGE = {
    StageStream.OWN: "stage",
    StageStream.SENDS_FORWARD: "sends forward",
    StageStream.RECEIVES_FORWARD: "receives forward",
    StageStream.SENDS_BACKWARD: "sends backward",
    StageStream.RECEIVES_BACKWARD: "receives backward",
    StageStream.BUCKETS: "gradient and parameter buckets",
}
_SHARED = {
    StageStream.EMBEDDING: EMBEDDING,
    StageStream.MODEL: MODEL,
}
THREADS = (*_OF_STAGE.values(), *STREAMS, *_SHARED.values())
"""Threads of a rank by number: of its stage, inside passes, and shared by several stages."""
_NAMES = _OF_STAGE | _SHARED
THREAD_OF = np.array([THREADS.index(_NAMES[stream]) for stream in StageStream], np.int32)
"""[streams of a stage], the thread of each."""
HOST_THREAD = THREADS.index(HOST)
PASS_THREADS = [THREADS.index(name) for name in STREAMS]


def nanoseconds(seconds: Floats) -> Nanoseconds:
    """Round seconds to integer nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


class SliceKind(Enum):
    """Kind of a slice: work of the GPU, work of the host, or a pass.

    A copy is a kernel on a stream of collectives: it copies, casts or adds what they exchange.
    """

    KERNEL = "kernel"
    COLLECTIVE = "collective"
    COPY = "copy"
    LAUNCH = "launch"
    HOST_WORK = "host work"
    PASS = "pass"


class Slice(NamedTuple):
    """A task of the iteration, or work inside a pass.

    Args:
        thread: index into `THREADS`.
        number: task of the iteration, or a number above all tasks. A kernel and its launch share a
            number.
        collective: what a collective inside a pass does, and on how many ranks; None for others.
    """

    thread: int
    kind: SliceKind
    name: str
    start_ns: int
    end_ns: int
    number: int
    collective: tuple[str, int] | None = None


@dataclass(frozen=True, eq=False)
class PassSlices:
    """The slices inside the passes of an iteration.

    Args:
        result: the iteration.
        detailed: [passes], whether a pass shows its kernels.
    """

    result: Result
    detailed: Flags
    _kernels: dict[PassVariant, PassKernels] = field(default_factory=dict, repr=False)

    @property
    def threads(self) -> list[int]:
        return PASS_THREADS if self.detailed.any() else []

    def of_stage(self, spans: Spans) -> Iterator[Slice]:
        """Yield launches, kernels and collectives, in order of time within a thread."""
        for number in np.unique(spans.pass_number[spans.pass_number >= 0]).tolist():
            if self.detailed[number]:
                yield from self._of_pass(number)

    def _of_pass(self, number: int) -> Iterator[Slice]:
        passes, timeline = self.result.passes, self.result.timeline
        tasks = slice(int(passes.first[number]), int(passes.last[number]) + 1)
        kernels = self._kernels_of(self.result.iteration.tasks.part_of[tasks.start])
        starts, ends = (nanoseconds(each).tolist() for each in kernels.times_in(timeline, tasks))
        graph = kernels.timeline.program.graph
        first_number = timeline.program.num_tasks + (number << 20)  # a pass has fewer slices
        for task, stream in enumerate(graph.stream_of.tolist()):
            thread, name = THREADS.index(STREAMS[stream]), graph.name_of(task)
            # The tasks of an op are its launch and itself; both have the number of the op.
            of_op, is_launch = task // 2, task % 2 == 0
            op = kernels.ops[of_op]
            kind = SliceKind.LAUNCH if is_launch else _kind_of_op(op)
            collective = None if is_launch else _collective(op)
            times = starts[task], ends[task]
            yield Slice(thread, kind, name, *times, first_number + of_op, collective)

    def _kernels_of(self, part: int) -> PassKernels:
        variant = cast(PassPart, self.result.iteration.tasks.parts[part]).variant
        if variant not in self._kernels:
            self._kernels[variant] = PassKernels.of(self.result.seconds, variant)
        return self._kernels[variant]


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
        used = THREAD_OF[self._by_stage[stage].stream].tolist()
        return sorted({*used, *self.inside.threads})

    def slices(self, stage: int) -> Iterator[Slice]:
        """Yield the slices of a stage's rank, in order of time within a thread."""
        starts, ends = self._times_ns
        spans, part_of = self._by_stage[stage], self.result.iteration.tasks.part_of
        kinds = [self._kinds[part] for part in part_of[spans.task].tolist()]
        tasks, threads = spans.task.tolist(), THREAD_OF[spans.stream].tolist()
        for task, thread, kind in zip(tasks, threads, kinds, strict=True):
            yield Slice(thread, kind, self._names[task], starts[task], ends[task], task)
        yield from self.inside.of_stage(spans)

    def memory_bytes(self, stage: int) -> Counter:
        curve = self.result.memory_curve(stage)
        return _counter(np.array(curve.times_s), np.array(curve.held_bytes))

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
    def _by_stage(self) -> list[Spans]:
        return [*map(self.result.spans.of_stage, range(self.result.num_stages))]


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
