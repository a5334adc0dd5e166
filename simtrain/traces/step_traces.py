"""One training step as PyTorch's profiler traced it, a trace for each rank.

NCCL's kernels say the group in which they meet. What a rank does between two of them is its work: a
kernel that computes, a copy, or time in which nothing runs because its host is behind. Time in
which only communication runs, and after whose end the rank goes on, is waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from simtrain.engine import union_of
from simtrain.engine.compiled import Floats
from simtrain.errors import InputError, Location
from simtrain.traces.kinds import Role
from simtrain.traces.ranks import RankTrace, TracedIteration, TracedKernel, iterations_of
from simtrain.traces.replayed_step import StepBuilder, StepTask, TracedStep

_END = -1
"""In place of a meeting: the end of the step."""
_Slots: TypeAlias = dict[tuple[object, int], dict[str, list[int]]]
"""The tasks of alike ranks between the same meetings, by rank."""


class _Rank(NamedTuple):
    """A rank in the step.

    Args:
        name: in reports.
        place: its file.
        start_us, end_us: of the step.
        meetings: kernels in which it meets others, in order of start.
        waits_us: [waits, 2], when it waits.
        waits_for: [waits], the meeting, by its place, at whose end each wait ends.
    """

    name: str
    place: Location
    start_us: float
    end_us: float
    meetings: Sequence[TracedKernel]
    waits_us: Floats
    waits_for: Sequence[int]

    @property
    def signature(self) -> tuple[tuple[str, int], ...]:
        """Equal for ranks whose work between meetings can be compared."""
        return tuple((each.kind.name, each.group) for each in self.meetings)

    def work_s(self, moment_us: float) -> float:
        """Return the time up to a moment in which it did not wait."""
        waited = np.clip(
            moment_us - self.waits_us[:, 0], 0, self.waits_us[:, 1] - self.waits_us[:, 0]
        )
        return float(moment_us - self.start_us - waited.sum()) * 1e-6


def step_of_traces(traces: Sequence[RankTrace]) -> TracedStep:
    """Return the median of the steps that all traces have.

    Raises:
        InputError: a rank is given twice (E866), the traces have no step in common (E867), they do
            not say which ranks meet, or a meeting lacks a rank (E868).
    """
    ranks = _ranks(traces)
    expected = Counter(meets for rank in ranks for meets in {each.meets for each in rank.meetings})
    builder = StepBuilder()
    slots: _Slots = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        _add(builder, rank, expected, slots)

    def typical(durations_s: Floats) -> Floats:
        """Return durations with which alike ranks work equally long between meetings."""
        typical_s = durations_s.copy()
        for of_rank in slots.values():
            sums_s = [float(durations_s[tasks].sum()) for tasks in of_rank.values()]
            for tasks, sum_s in zip(of_rank.values(), sums_s, strict=True):
                if sum_s > 0:
                    typical_s[tasks] *= np.mean(sums_s) / sum_s
        return typical_s

    measured_s = max(rank.end_us - rank.start_us for rank in ranks) * 1e-6
    return builder.finish(measured_s, len(ranks), typical)


def _add(builder: StepBuilder, rank: _Rank, expected: Mapping[str, int], slots: _Slots) -> None:
    """Add the work of a rank, cut where a meeting begins and where a wait ends."""
    counts, last_of_stream = Counter[str](), dict[str, int]()
    meetings: list[int] = []
    pending: list[int] = []
    done_s, begin_s, number = 0.0, 0.0, -1
    for moment_us, is_start, place in _events(rank):
        work_s = max(rank.work_s(moment_us), done_s)
        lasts_s = work_s - done_s
        name = f"work of {rank.name} from {begin_s:.6f} s on"
        recorded_s = begin_s, begin_s + lasts_s
        task = StepTask(name, rank.place, rank.name, rank.name, recorded_s)
        number = builder.add((rank.name, number), 1, lasts_s, pending, task)
        slots[rank.signature, len(meetings)][rank.name].append(number)
        done_s, begin_s, pending = work_s, (moment_us - rank.start_us) * 1e-6, []
        if place == _END:
            break
        if not is_start:
            pending = [meetings[place]]
            continue
        kernel = rank.meetings[place]
        key = kernel.meets, counts[kernel.meets]
        counts[kernel.meets] += 1
        before = {number, last_of_stream.get(kernel.stream, number)}
        name = f"{kernel.kind.label} {key[1]} of group {kernel.meets}"
        duration_s = (kernel.end_us - kernel.start_us) * 1e-6
        task = StepTask(name, rank.place, name)
        meetings.append(builder.add(key, expected[kernel.meets], duration_s, before, task))
        last_of_stream[kernel.stream] = meetings[-1]


def _events(rank: _Rank) -> list[tuple[float, bool, int]]:
    """Return when meetings begin and waits end, in order, and of which meeting; then the end."""
    starts = [(each.start_us, True, place) for place, each in enumerate(rank.meetings)]
    ends_us = rank.waits_us[:, 1].tolist()
    waits = [(end_us, False, place) for end_us, place in zip(ends_us, rank.waits_for, strict=True)]
    return sorted([*starts, *waits, (rank.end_us, False, _END)])


def _ranks(traces: Sequence[RankTrace]) -> list[_Rank]:
    """Return the ranks in the step that all of them have, the median of these steps."""
    steps = [{step.name: step for step in iterations_of(trace)[1]} for trace in traces]
    common = [name for name in steps[0] if all(name in each for each in steps)]
    place = Location(str(traces[0].file))
    if not common:
        fix = "profile the same steps on all ranks, with a schedule of the profiler"
        raise InputError.of("E867", "the traces have no step in common", place, fix)
    common.sort(key=lambda name: max(each[name].seconds for each in steps))
    name = common[(len(common) - 1) // 2]
    ranks: dict[str, _Rank] = {}
    for number, (trace, each) in enumerate(zip(traces, steps, strict=True)):
        rank = _rank(trace, each[name], number)
        if rank.name in ranks:
            fix = "give one trace for each rank"
            raise InputError.of("E866", f"{rank.name} is given twice", rank.place, fix)
        ranks[rank.name] = rank
    return [*ranks.values()]


def _rank(trace: RankTrace, step: TracedIteration, number: int) -> _Rank:
    kernels = [trace.kernels[place] for place in step.kernels]
    meetings = [each for each in kernels if each.meets]
    place = Location(str(trace.file))
    if not meetings:
        reason = "NCCL's kernels have no Process Group Ranks, and no Src Rank and Dst Rank"
        fix = "trace with PyTorch 2.4 or newer"
        message = "the trace does not say which ranks meet"
        raise InputError.of("E868", message, place, fix, reason)
    name = f"rank {number if trace.rank is None else trace.rank}"
    works = [each for each in kernels if each.kind.role is not Role.COMMUNICATION]
    waits = [*_waits(works, meetings)]
    waits_us = np.array([wait for wait, _ in waits]).reshape(-1, 2)
    return _Rank(
        name, place, step.start_us, step.end_us, meetings, waits_us, [each for _, each in waits]
    )


def _waits(
    works: Sequence[TracedKernel], meetings: Sequence[TracedKernel]
) -> Iterator[tuple[tuple[float, float], int]]:
    """Yield when only meetings run, up to the last of their ends, and the meeting that ends."""
    busy = union_of(np.array([each[4:6] for each in works]).reshape(-1, 2))
    ends_us = np.array([each.end_us for each in meetings])
    order = ends_us.argsort()
    for begin_us, end_us in union_of(np.array([each[4:6] for each in meetings])).tolist():
        inside = busy[(busy[:, 1] > begin_us) & (busy[:, 0] < end_us)]
        edges = [begin_us, *inside.clip(begin_us, end_us).ravel().tolist(), end_us]
        for idle_us, until_us in zip(edges[::2], edges[1::2], strict=True):
            last = int(np.searchsorted(ends_us[order], until_us, side="right")) - 1
            if last >= 0 and ends_us[order[last]] > idle_us:
                yield (idle_us, float(ends_us[order[last]])), int(order[last])
