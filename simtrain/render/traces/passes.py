"""Slices inside passes: launches, kernels and collectives, or few intervals with their sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import cast

import numpy as np

from simtrain.engine.compiled import Flags
from simtrain.iteration.programs.parts import PassPart
from simtrain.iteration.programs.pass_tasks import COMMUNICATION, COMPUTE, STREAMS
from simtrain.iteration.programs.seconds import whole_pass
from simtrain.iteration.report.result import Result
from simtrain.iteration.report.spans import Spans
from simtrain.iteration.report.stage_kernels import PassKernels
from simtrain.render.traces.slices import PASS_THREADS, THREADS, Slice, SliceKind, nanoseconds
from simtrain.render.traces.sums import KINDS, PassSums, sum_up
from simtrain.workload.ops import Op
from simtrain.workload.work import Collective, HostWork

_NAMES = {
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
        """Return the pass of a part of the iteration, which is a pass or a span."""
        return whole_pass(cast(PassPart, self.result.iteration.tasks.parts[part]))

    def _inside_of(self, whole: PassPart) -> _Inside:
        if whole not in self._inside:
            kernels = PassKernels.of(self.result.seconds, whole)
            kinds, timeline = [*map(_kind_of, kernels.ops)], kernels.timeline
            sums = PassSums.of(timeline.start_s[1::2], timeline.end_s[1::2], kinds)
            self._inside[whole] = _Inside(kernels, kinds, sums)
        return self._inside[whole]

    def _first_number(self, pass_number: int) -> int:
        """Return the first number of the slices inside a pass, above those of all tasks."""
        # A pass has fewer than 2**20 slices.
        return self.result.timeline.program.num_tasks + (pass_number << 20)


def _name_of(part: PassPart) -> str:
    """Return the name of a pass, or of merged passes."""
    return _NAMES[part.kind] + (f" and {_NAMES[part.beside.kind]}" if part.beside else "")


def _collective(op: Op) -> tuple[str, int] | None:
    if isinstance(op.work, Collective):
        return op.work.kind.value, op.work.group.num_ranks
    return None


def _kind_of(op: Op) -> SliceKind:
    if isinstance(op.work, Collective):
        return SliceKind.COLLECTIVE
    is_copy = op.stream_group is not None or isinstance(op.work, HostWork)
    return SliceKind.COPY if is_copy else SliceKind.KERNEL
