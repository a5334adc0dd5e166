"""Stragglers of a training step that PyTorch's profiler traced, a trace for each rank.

NCCL's kernels say the group in which they meet. What a rank does between two of them is its work: a
kernel that computes, a copy, or time in which nothing runs because its host is behind. Time in
which only communication runs, and after whose end the rank goes on, is waiting.

Each rank runs its work one after another. A transfer or a collective, in which several ranks meet,
begins when the last of them arrives, and then takes the shortest of the recorded durations: the
others include waiting. Without a rank, its work takes typical durations: the mean of ranks that
work between the same meetings. The cost of all stragglers is the step relative to one in which all
work is typical.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.values import dataclass, field
from simtrain.engine import DeadlockError, Program, Task, simulate, union_of
from simtrain.engine.compiled import Floats
from simtrain.errors import InputError, Location
from simtrain.guests.traces.kinds import Role
from simtrain.guests.traces.ranks import RankTrace, TracedIteration, TracedKernel, iterations_of
from simtrain.units import format_seconds
from simtrain.views.kinds import FOUR_DIGITS, SECONDS, SHARE, TEXT
from simtrain.views.view import Column, Facts, Row, Table, View, remarks, verdict

_END = -1
"""In place of a meeting: the end of the step."""
_Slots: TypeAlias = dict[tuple[object, int], dict[str, list[int]]]
"""The tasks of alike ranks between the same meetings, by rank."""


@dataclass(slots=True)
class StepTask:
    """The work of a rank between meetings, or a transfer or collective in which ranks meet.

    Args:
        number: its place among the tasks.
        name: in reports.
        place: the trace of its first rank.
        num_ranks: how many ranks meet in it.
        rank: whose work it is; "" for a transfer or collective.
        durations_s: as each of its ranks recorded it.
        after: tasks before it, of all its ranks.
    """

    number: int
    name: str
    place: Location
    num_ranks: int
    rank: str = ""
    durations_s: list[float] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


@dataclass(eq=False)
class TracedStep:
    """The tasks of a step.

    Args:
        tasks: in the order in which ranks began them.
        measured_s: time of the step in the trace.
        num_workers: ranks of the step.
        durations_s: [tasks], what each task takes once all its ranks are there.
        typical_s: [tasks], what each would take without stragglers.
    """

    tasks: Sequence[StepTask]
    measured_s: float
    num_workers: int
    durations_s: Floats
    typical_s: Floats

    @cached_property
    def program(self) -> Program:
        return Program.of(
            Task(task.name, task.rank or task.name, duration_s, (*dict.fromkeys(task.after),))
            for task, duration_s in zip(self.tasks, self.durations_s.tolist(), strict=True)
        )

    def step_s(self, durations_s: Floats) -> float:
        """Return the time of the step whose tasks take these durations.

        Raises:
            InputError: workers wait for each other in a circle (E869).
        """
        try:
            return float(simulate(Program(self.program.graph, durations_s)).makespan_s)
        except DeadlockError as error:
            heads = [wait.head for wait in error.cycle]
            circle = " waits for the ".join(
                [*heads[:4], heads[0]] if heads[4:] else [*heads, heads[0]]
            )
            place = next(task.place for task in self.tasks if task.name == heads[0])
            message = f"the workers can never continue: the {circle}"
            reason = "each op waits for the ops that its workers started before"
            fix = "give the traces of one step alone"
            raise InputError.of("E869", message, place, fix, reason) from None


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
        return tuple((each.kind.name, each.group) for each in self.meetings)

    def work_s(self, moment_us: float) -> float:
        waited = np.clip(
            moment_us - self.waits_us[:, 0], 0, self.waits_us[:, 1] - self.waits_us[:, 0]
        )
        return float(moment_us - self.start_us - waited.sum()) * 1e-6


def step_of_traces(traces: Sequence[RankTrace]) -> TracedStep:
    """Return the median of the steps that all traces have.

    Raises:
        InputError: a rank is given twice or the step takes no time (E866), the traces have no step
            in common (E867), they do not say which ranks meet, or a meeting lacks a rank (E868).
    """
    ranks = _ranks(traces)
    expected = Counter(meets for rank in ranks for meets in {each.meets for each in rank.meetings})
    tasks: dict[Hashable, StepTask] = {}
    slots: _Slots = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        _add(tasks, rank, expected, slots)
    for task in tasks.values():
        if (present := len(task.durations_s)) != task.num_ranks:
            message = f"the {task.name} has {present} of {task.num_ranks} workers"
            reason = "a transfer or a collective waits for all of its workers"
            fix = "give the traces of all ranks of the step, each once"
            raise InputError.of("E868", message, task.place, fix, reason)
    measured_s = max(rank.end_us - rank.start_us for rank in ranks) * 1e-6
    if not measured_s > 0:
        place = Location(ranks[0].place.file)
        raise InputError.of("E866", "the step takes no time", place, "write times in seconds")
    durations_s = np.array([min(task.durations_s) for task in tasks.values()])
    typical_s = durations_s.copy()
    for of_rank in slots.values():
        sums_s = [float(durations_s[numbers].sum()) for numbers in of_rank.values()]
        for numbers, sum_s in zip(of_rank.values(), sums_s, strict=True):
            if sum_s > 0:
                typical_s[numbers] *= np.mean(sums_s) / sum_s
    return TracedStep([*tasks.values()], measured_s, len(ranks), durations_s, typical_s)


def _add(
    tasks: dict[Hashable, StepTask], rank: _Rank, expected: Mapping[str, int], slots: _Slots
) -> None:
    """Add the work of a rank, cut where a meeting begins and where a wait ends."""
    counts, last_of_stream = Counter[str](), dict[str, int]()
    meetings: list[int] = []
    pending: list[int] = []
    done_s, begin_s = 0.0, 0.0
    for moment_us, is_start, place in _events(rank):
        work_s = max(rank.work_s(moment_us), done_s)
        name = f"work of {rank.name} from {begin_s:.6f} s on"
        number = len(tasks)
        durations_s = [work_s - done_s]
        tasks[number] = StepTask(number, name, rank.place, 1, rank.name, durations_s, pending)
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
        name = f"{kernel.kind.label} {key[1]} of group {kernel.meets}"
        new = StepTask(len(tasks), name, rank.place, expected[kernel.meets])
        meeting = tasks.setdefault(key, new)
        meeting.durations_s.append((kernel.end_us - kernel.start_us) * 1e-6)
        meeting.after.extend({number, last_of_stream.get(kernel.stream, number)})
        meetings.append(meeting.number)
        last_of_stream[kernel.stream] = meeting.number


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


_LEAST_SAVING = 0.005
_MOST_LISTED = 8


@dataclass(frozen=True, slots=True)
class Suspect(PlainData):
    """A rank whose work may slow the step down.

    Args:
        without_s: time of the step if its work took typical durations.
        saving: share of the step that this saves.
        passes: its work relative to the typical one.
    """

    json_fields: ClassVar = keys("name without_s saving relative_passes=passes")

    name: str
    without_s: float
    saving: float
    passes: float


@dataclass(frozen=True, slots=True)
class StragglerReport(PlainData):
    """The stragglers of a step.

    Args:
        measured_s: time of the step in the trace.
        replayed_s: time of the step from its durations alone.
        typical_s: time of the step if all work were typical.
        suspects: the ranks that cost most, by saving.
        culprit: the first of them if it costs half a percent of the step.
    """

    json_fields: ClassVar = keys(
        "measured_s replayed_s typical_s slowdown launch_delays num_workers culprit suspects"
    )

    measured_s: float
    replayed_s: float
    typical_s: float
    num_workers: int
    suspects: tuple[Suspect, ...]
    culprit: Suspect | None

    @property
    def slowdown(self) -> float:
        return self.replayed_s / self.typical_s

    @property
    def launch_delays(self) -> float:
        """The traced step relative to the replayed one: gaps between the ops of workers."""
        return self.measured_s / self.replayed_s


def find_stragglers(step: TracedStep) -> StragglerReport:
    """Run a step again without each suspect, and name the one that costs most."""
    replayed_s = step.step_s(step.durations_s)
    tasks_of: dict[str, list[int]] = defaultdict(list)
    for number, task in enumerate(step.tasks):
        if task.rank:
            tasks_of[task.rank].append(number)
    suspects = []
    for name, tasks in tasks_of.items():
        durations_s = step.durations_s.copy()
        durations_s[tasks] = step.typical_s[tasks]
        without_s = step.step_s(durations_s)
        passes = float(step.durations_s[tasks].sum() / step.typical_s[tasks].sum())
        suspects.append(Suspect(name, without_s, 1 - without_s / replayed_s, passes))
    suspects.sort(key=lambda suspect: -suspect.saving)
    return StragglerReport(
        measured_s=step.measured_s,
        replayed_s=replayed_s,
        typical_s=step.step_s(step.typical_s),
        num_workers=step.num_workers,
        suspects=tuple(suspects[:_MOST_LISTED]),
        culprit=suspects[0] if suspects[0].saving >= _LEAST_SAVING else None,
    )


def straggler_view(report: StragglerReport) -> View:
    """Show the step, the suspects, and the one that costs most."""
    facts = Facts(
        [
            ("step", f"{format_seconds(report.measured_s)}, {report.num_workers} ranks"),
            ("replayed", format_seconds(report.replayed_s)),
            ("slowdown by stragglers", f"{report.slowdown:.3f}"),
            ("slowdown by gaps", f"{report.launch_delays:.3f}"),
        ]
    )
    columns = [
        Column("name", "rank", TEXT),
        Column("passes", "work\nx typical", FOUR_DIGITS),
        Column("without_s", "step\nwithout it", SECONDS),
        Column("saving", "saves", SHARE),
    ]
    rows = [Row((each.name, each.passes, each.without_s, each.saving)) for each in report.suspects]
    notes = remarks(
        [
            "Typical is the mean of ranks that work between the same meetings. Without a rank its "
            "work is typical."
        ]
    )
    table = Table("suspects", "The ranks that cost most", columns, rows)
    culprit = report.culprit
    headline = verdict(True, "no rank costs half a percent of the step")
    if culprit:
        words = f"{culprit.name}: without it the step takes {format_seconds(culprit.without_s)}"
        headline = verdict(True, f"{words}, {culprit.saving:.1%} less", doubt="STRAGGLER")
    return View([facts, table, notes, headline])
