"""A timeline as events of a Chrome trace, as Kineto (PyTorch's profiler) writes them.

A process is a rank, a thread one of its streams. A pass is one kernel, unless it is shown in
detail: then it is an annotation, and its kernels and collectives are on threads of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import Timeline
from simtrain.engine.compiled import Floats, Ints
from simtrain.programs.parts import PassPart, SynchronizationPart
from simtrain.programs.pass_layout import COMPUTE, HOST, STREAMS
from simtrain.report.activities import REDUCTION, TRANSFER, activity_of, shared_stages
from simtrain.report.result import Result
from simtrain.schedules import Messages

Nanoseconds = NDArray[np.int64]

PASSES = "stage"
_OF_STAGE = (PASSES, "sends forward", "sends backward", "gradient and parameter buckets")
THREADS = (*_OF_STAGE, *STREAMS, "embedding", "model")
"""Streams of a rank by thread number: its stage's, those inside passes, and those of several."""
_KERNEL, _ANNOTATION = "kernel", "gpu_user_annotation"
_LAUNCH, _HOST_WORK = "cuda_runtime", "user_annotation"
# The name by which Holistic Trace Analysis knows communication.
_COMMUNICATION = "ncclDevKernel "


def nanoseconds(seconds: Floats) -> Nanoseconds:
    """The nearest whole nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


@dataclass(frozen=True, eq=False)
class TraceEvents:
    """The events of a result.

    Args:
        result: the iteration.
        detailed: [actions], whether the kernels of each action of the schedule are shown.
    """

    result: Result
    detailed: NDArray[np.bool_]
    _inside: dict[PassPart, Timeline] = field(default_factory=dict, repr=False)

    def rank(self, stage: int) -> int:
        """The rank that is simulated for a stage: the first of the stage."""
        return stage * self.result.plan.mesh.stride("pp")

    def of_stage(self, stage: int) -> Iterator[str]:
        """The events of a stage's rank, each the text of a JSON object."""
        yield from self._metadata(stage)
        for task, thread in self._tasks(stage):
            yield self._span(stage, task, thread)
        yield from self._flows(stage)
        yield from self._memory(stage)
        tasks, starts = self.result.iteration.tasks, self.result.plan.schedule.rank_starts
        for action in range(int(starts[stage]), int(starts[stage + 1])):
            if self.detailed[action]:
                yield from self._kernels(stage, tasks.first[action], tasks.last[action])

    @cached_property
    def _times_ns(self) -> tuple[list[int], list[int]]:
        timeline = self.result.timeline
        return nanoseconds(timeline.start_s).tolist(), nanoseconds(timeline.end_s).tolist()

    @cached_property
    def _kinds(self) -> list[tuple[str, str]]:
        """[parts], what the names of their tasks begin with, and the category of their events."""
        communication = (TRANSFER, REDUCTION)
        return [
            ("", _HOST_WORK)
            if isinstance(part, SynchronizationPart)
            else (_COMMUNICATION if activity_of(part) in communication else "", _KERNEL)
            for part in self.result.iteration.tasks.parts
        ]

    @cached_property
    def _action_of(self) -> Ints:
        """[tasks], the action of each task of a pass; -1 for other tasks."""
        tasks = self.result.iteration.tasks
        found = np.full(tasks.graph.num_tasks, -1, np.int32)
        for offset in range(int((tasks.last - tasks.first).max()) + 1):
            own = np.flatnonzero(tasks.first + offset <= tasks.last)
            found[tasks.first[own] + offset] = own
        return found

    @cached_property
    def _by_stage(self) -> list[list[tuple[int, int]]]:
        """Each stage's tasks and their threads; tasks of several stages are on each of them."""
        num_stages, graph = self.result.num_stages, self.result.timeline.program.graph
        found: list[list[tuple[int, int]]] = [[] for _ in range(num_stages)]
        for task, stream in enumerate(graph.stream_of.tolist()):
            group, stage = divmod(stream, num_stages)
            if group < len(_OF_STAGE):
                found[stage].append((task, group))
            else:
                name = graph.streams[stream]
                for member in shared_stages(self.result, name):
                    found[member].append((task, THREADS.index(name)))
        return found

    def _tasks(self, stage: int) -> list[tuple[int, int]]:
        return self._by_stage[stage]

    def _metadata(self, stage: int) -> Iterator[str]:
        rank, gpus = self.rank(stage), self.result.plan.mesh.gpus_per_node
        place = f"rank {rank} (node {rank // gpus}, GPU {rank % gpus}), stage {stage}"
        yield _metadata(rank, "process_name", name=place)
        yield _metadata(rank, "process_sort_index", sort_index=rank)
        used = {thread for _, thread in self._tasks(stage)}
        if self.detailed.any():
            used |= {THREADS.index(name) for name in STREAMS}
        for thread in sorted(used):
            yield _metadata(rank, "thread_name", thread, name=THREADS[thread])
            yield _metadata(rank, "thread_sort_index", thread, sort_index=thread)

    def _span(self, stage: int, task: int, thread: int) -> str:
        action, starts, ends = int(self._action_of[task]), *self._times_ns
        prefix, category = self._kinds[self.result.iteration.tasks.part_of[task]]
        name = prefix + self.result.timeline.program.graph.name_of(task)
        if action >= 0 and self.detailed[action]:
            category = _ANNOTATION
        return self._event(stage, thread, category, name, starts[task], ends[task], task)

    def _event(
        self, stage: int, thread: int, category: str, name: str, start: int, end: int, number: int
    ) -> str:
        rank = self.rank(stage)
        device = rank % self.result.plan.mesh.gpus_per_node
        return (
            f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {rank}, '
            f'"tid": {thread}, "ts": {_microseconds(start)}, "dur": {_microseconds(end - start)}, '
            f'"args": {{"device": {device}, "stream": {thread}, "correlation": {number}}}}}'
        )

    def _flows(self, stage: int) -> Iterator[str]:
        """An arrow from each transfer to the pass that needs it."""
        messages, starts = Messages.of(self.result.plan.schedule), self._times_ns[0]
        consumers = self.result.iteration.tasks.first[messages.consumer]
        receivers = messages.receiver
        for task, thread in self._tasks(stage):
            if thread in (1, 2):
                end = int(receivers[task])
                head = f'"cat": "transfer", "name": "transfer", "id": {task}'
                yield (
                    f'{{"ph": "s", {head}, "pid": {self.rank(stage)}, "tid": {thread}, '
                    f'"ts": {_microseconds(starts[task])}}}'
                )
                yield (
                    f'{{"ph": "f", "bp": "e", {head}, "pid": {self.rank(end)}, "tid": 0, '
                    f'"ts": {_microseconds(starts[int(consumers[task])])}}}'
                )

    def _memory(self, stage: int) -> Iterator[str]:
        curve, head = self.result.memory_curve(stage), f'"pid": {self.rank(stage)}'
        times = nanoseconds(np.array(curve.times_s)).tolist()
        for time, held in zip(times, curve.held_bytes, strict=True):
            yield (
                f'{{"ph": "C", "name": "memory", {head}, "ts": {_microseconds(time)}, '
                f'"args": {{"bytes": {held}}}}}'
            )

    def _kernels(self, stage: int, first: int, last: int) -> Iterator[str]:
        """The launches, kernels and collectives of the pass with the tasks `first` to `last`.

        A pass that is cut for its buckets may wait between its spans: its ops move with the span
        in which they end.
        """
        timeline = self.result.timeline
        inside = self._pass_timeline(int(first))
        graph = inside.program.graph
        own = slice(int(first), int(last) + 1)
        ends_s = np.cumsum(timeline.program.duration_s[own])
        begins_s = ends_s - timeline.program.duration_s[own]
        span = np.minimum(np.searchsorted(ends_s, inside.end_s * (1 - 1e-12)), len(ends_s) - 1)
        shift_s = (timeline.start_s[own] - begins_s)[span]
        limit = self._times_ns[1][int(last)]
        starts = np.minimum(nanoseconds(inside.start_s + shift_s), limit).tolist()
        ends = np.minimum(nanoseconds(inside.end_s + shift_s), limit).tolist()
        base = timeline.program.num_tasks + int(self._action_of[first]) * (1 << 20)
        streams = [graph.streams[number] for number in graph.stream_of.tolist()]
        for task, stream in enumerate(streams):
            name, category = graph.name_of(task), _KERNEL
            if stream == HOST:
                name, category = "cudaLaunchKernel", _LAUNCH
            elif stream != COMPUTE:
                name = _COMMUNICATION + name
            thread, number = THREADS.index(stream), base + task // 2
            yield self._event(stage, thread, category, name, starts[task], ends[task], number)

    def _pass_timeline(self, task: int) -> Timeline:
        tasks = self.result.iteration.tasks
        # The tasks of an action are parts of a pass.
        part = cast(PassPart, tasks.parts[tasks.part_of[task]])
        if part.span is not None:
            part = PassPart(part.chunk, part.kind, part.saves_all)
        if part not in self._inside:
            self._inside[part] = self.result.seconds.timeline_of_pass(part)
        return self._inside[part]


def _metadata(rank: int, event: str, thread: int | None = None, **values: object) -> str:
    tid = {} if thread is None else {"tid": thread}
    return json.dumps({"ph": "M", "name": event, "pid": rank, **tid, "args": values})


def _microseconds(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"
