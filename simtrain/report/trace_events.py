"""Content of a trace in any format: slices on threads, arrows and counters.

A pass is one slice. A pass in detail also shows its launches, kernels and collectives, on separate
threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import Timeline
from simtrain.engine.compiled import Floats
from simtrain.programs.parts import PassPart, SynchronizationPart
from simtrain.programs.pass_tasks import COMPUTE, HOST, STREAMS
from simtrain.programs.seconds import pass_flops, whole_pass
from simtrain.report.activities import REDUCTION, TRANSFER, activity_of, shared_stages
from simtrain.report.result import Result
from simtrain.schedules import Messages

Nanoseconds: TypeAlias = NDArray[np.int64]

_STAGE, _SENDS, _RECEIVES = "stage", "sends", "receives"
_GROUPS = (
    # For each group of streams: threads, and offsets from the stream's stage to the thread's stage.
    ((0, _STAGE),),
    ((0, f"{_SENDS} forward"), (1, f"{_RECEIVES} forward")),
    ((0, f"{_SENDS} backward"), (-1, f"{_RECEIVES} backward")),
    ((0, "gradient and parameter buckets"),),
)
_OF_STAGE = [name for group in _GROUPS for _, name in group]
THREADS = (*_OF_STAGE, *STREAMS, "embedding", "model")
"""Threads of a rank by number: of its stage, inside passes, and shared by several stages."""
STAGE_THREAD = THREADS.index(_STAGE)
PASS_THREADS = [THREADS.index(name) for name in STREAMS]
SEND_THREADS = [number for number, name in enumerate(THREADS) if name.startswith(_SENDS)]


def nanoseconds(seconds: Floats) -> Nanoseconds:
    """Round seconds to integer nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


class Kind(Enum):
    """Kind of a slice: work of the GPU, work of the host, or a pass that contains other slices."""

    KERNEL = "kernel"
    COLLECTIVE = "collective"
    LAUNCH = "launch"
    HOST_WORK = "host work"
    PASS = "pass in detail"


class Slice(NamedTuple):
    """A task of the iteration or of a pass.

    Args:
        thread: index into `THREADS`.
        number: task of the iteration. Inside a pass, a kernel and its launch share a number.
    """

    thread: int
    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    number: int


class Arrow(NamedTuple):
    """Arrow from a transfer to the pass that waits for it.

    Args:
        transfer, consumer: tasks of the iteration. If buckets cut the pass, its first task.
        thread: thread of the transfer on the sender's rank.
        receiver: stage of the consumer.
        start_ns, end_ns: start of the transfer, and start of the consumer.
    """

    transfer: int
    consumer: int
    thread: int
    receiver: int
    start_ns: int
    end_ns: int


Counter: TypeAlias = tuple[list[int], list[float]]
"""Times in nanoseconds, and the value from each time on."""


@dataclass(frozen=True, eq=False)
class TraceEvents:
    """Content of an iteration's trace.

    Args:
        result: the iteration.
        detailed: for each action of the schedule, whether to show its kernels.
    """

    result: Result
    detailed: NDArray[np.bool_]
    _inside: dict[PassPart, Timeline] = field(default_factory=dict, repr=False)

    def place(self, stage: int) -> tuple[int, int, int]:
        """Return the simulated rank of a stage (its first), the rank's node, and its GPU there."""
        rank = stage * self.result.plan.mesh.stride("pp")
        return rank, *divmod(rank, self.result.plan.mesh.gpus_per_node)

    def threads(self, stage: int) -> list[int]:
        """Return the threads of a stage's rank."""
        used = {thread for _, thread in self._by_stage[stage]}
        return sorted(used.union(PASS_THREADS if self.detailed.any() else ()))

    def slices(self, stage: int) -> Iterator[Slice]:
        """Yield the slices of a stage's rank, in order of time within a thread."""
        starts, ends = self._times_ns
        parts, part_of = self._kinds, self.result.iteration.tasks.part_of.tolist()
        detailed = self._is_detailed.tolist()
        for task, thread in self._by_stage[stage]:
            kind = Kind.PASS if detailed[task] else parts[part_of[task]]
            yield Slice(thread, kind, self._names[task], starts[task], ends[task], task)
        tasks, of_stages = self.result.iteration.tasks, self.result.plan.schedule.rank_starts
        for action in range(*of_stages[stage : stage + 2].tolist()):
            if self.detailed[action]:
                yield from self._inside_of(
                    action, int(tasks.first[action]), int(tasks.last[action])
                )

    def arrows(self, stage: int) -> Iterator[Arrow]:
        """Yield an arrow for each transfer that a stage sends."""
        messages, starts = Messages.of(self.result.plan.schedule), self._times_ns[0]
        consumers = self.result.iteration.tasks.first[messages.consumer].tolist()
        receivers = messages.receiver.tolist()
        for task, thread in self._by_stage[stage]:
            if thread in SEND_THREADS:
                # Tasks of messages come first, so a message has the number of its task.
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
        own = queue[starts[stage] : starts[stage + 1]]
        rates = self._rates_percent[result.iteration.tasks.part_of[own]]
        times = np.stack([timeline.start_s[own], timeline.end_s[own]], axis=1).ravel()
        values = np.stack([rates, np.zeros(len(rates))], axis=1).ravel()
        return _counter(np.append(0.0, times), np.append(0.0, values))

    def critical_path(self) -> Iterator[Slice]:
        """Yield the slices of the critical path in order. Their names contain the stream."""
        timeline, (starts, ends) = self.result.timeline, self._times_ns
        parts, part_of = self._kinds, self.result.iteration.tasks.part_of
        for task in timeline.critical_tasks():
            name = f"{self._names[task]} ({timeline.program.graph.stream(task)})"
            yield Slice(0, parts[part_of[task]], name, starts[task], ends[task], task)

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
        communication = (TRANSFER, REDUCTION)
        return [
            Kind.HOST_WORK
            if isinstance(part, SynchronizationPart)
            else (Kind.COLLECTIVE if activity_of(part) in communication else Kind.KERNEL)
            for part in self.result.iteration.tasks.parts
        ]

    @cached_property
    def _rates_percent(self) -> Floats:
        """[parts] utilization while the part runs; 0 if the part is not a pass."""
        seconds, parts = self.result.seconds, self.result.iteration.tasks.parts
        rates = np.zeros(len(parts))
        for place, part in enumerate(parts):
            if isinstance(part, PassPart):
                whole = whole_pass(part)
                whole_s = seconds.passes[whole].duration_s
                rates[place] = pass_flops(seconds.pass_of(part))[1] / whole_s if whole_s else 0.0
        return 100 * rates / self.result.profile.gpu.peak_flops.value

    @cached_property
    def _is_detailed(self) -> NDArray[np.bool_]:
        """[tasks] whether the task is a pass with kernels shown, or a span of such a pass."""
        tasks = self.result.iteration.tasks
        shown = np.zeros(tasks.graph.num_tasks, np.bool_)
        for action in np.flatnonzero(self.detailed).tolist():
            shown[tasks.first[action] : tasks.last[action] + 1] = True
        return shown

    @cached_property
    def _by_stage(self) -> list[list[tuple[int, int]]]:
        """[stages] tasks with their threads. Tasks of several stages are listed for each."""
        num_stages, graph = self.result.num_stages, self.result.timeline.program.graph
        found: list[list[tuple[int, int]]] = [[] for _ in range(num_stages)]
        groups = [[(step, THREADS.index(name)) for step, name in group] for group in _GROUPS]
        for task, stream in enumerate(graph.stream_of.tolist()):
            group, stage = divmod(stream, num_stages)
            if group < len(groups):
                for step, thread in groups[group]:
                    found[(stage + step) % num_stages].append((task, thread))
            else:
                name = graph.streams[stream]
                for member in shared_stages(self.result, name):
                    found[member].append((task, THREADS.index(name)))
        return found

    def _inside_of(self, action: int, first: int, last: int) -> Iterator[Slice]:
        """Yield launches, kernels and collectives of the pass with the tasks `first` to `last`.

        A pass that buckets cut may wait between its spans. Each op is shifted with the span in
        which it ends.
        """
        timeline = self.result.timeline
        inside = self._pass_timeline(first)
        graph = inside.program.graph
        own = slice(first, last + 1)
        ends_s = np.cumsum(timeline.program.duration_s[own])
        begins_s = ends_s - timeline.program.duration_s[own]
        span = np.minimum(np.searchsorted(ends_s, inside.end_s * (1 - 1e-12)), len(ends_s) - 1)
        shift_s = (timeline.start_s[own] - begins_s)[span]
        limits = self._times_ns[0][first], self._times_ns[1][last]
        starts = np.clip(nanoseconds(inside.start_s + shift_s), *limits).tolist()
        ends = np.clip(nanoseconds(inside.end_s + shift_s), *limits).tolist()
        base = timeline.program.num_tasks + action * (1 << 20)
        streams = [graph.streams[number] for number in graph.stream_of.tolist()]
        kinds = dict.fromkeys(STREAMS, Kind.COLLECTIVE) | {HOST: Kind.LAUNCH, COMPUTE: Kind.KERNEL}
        for task, stream in enumerate(streams):
            thread, number, name = THREADS.index(stream), base + task // 2, graph.name_of(task)
            yield Slice(thread, kinds[stream], name, starts[task], ends[task], number)

    def _pass_timeline(self, task: int) -> Timeline:
        tasks = self.result.iteration.tasks
        # All tasks of an action are spans of its pass.
        whole = whole_pass(cast(PassPart, tasks.parts[tasks.part_of[task]]))
        seconds = self.result.seconds
        if whole not in self._inside:
            self._inside[whole] = seconds.machine.timeline(seconds.pass_of(whole))
        return self._inside[whole]


def _counter(times_s: Floats, values: NDArray[np.generic]) -> Counter:
    """Keep the last value at each nanosecond, and only values that differ from the previous."""
    times_ns = nanoseconds(times_s)
    is_last = np.append(times_ns[1:] > times_ns[:-1], True)
    times_ns, values = times_ns[is_last], values[is_last]
    changes = np.append(True, values[1:] != values[:-1])
    return times_ns[changes].tolist(), values[changes].tolist()
