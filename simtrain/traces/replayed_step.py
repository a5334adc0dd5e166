"""What a traced step would take without a rank.

Each rank runs its work one after another. A transfer or a collective, in which several ranks meet,
begins when the last of them arrives, and then takes the shortest of the recorded durations: the
others include waiting. Without a rank, its work takes typical durations: the mean of ranks that
work between the same meetings. The cost of all stragglers is the step relative to one in which all
work is typical.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from simtrain.base.plain_data import PlainData, keys
from simtrain.engine import DeadlockError, Program, Task, simulate
from simtrain.engine.compiled import Floats
from simtrain.errors import InputError, Location
from simtrain.units import format_seconds
from simtrain.views.kinds import FOUR_DIGITS, SECONDS, SHARE, TEXT
from simtrain.views.view import Column, Facts, Row, Table, Verdict, View, remarks

_MOST_DRAWN = 1 << 20
"""Durations that are simulated together: they and the times of their tasks take some 30 MB."""


@dataclass(slots=True)
class StepTask:
    """A pass of a worker, or a transfer or collective in which workers meet.

    Args:
        name: in reports.
        place: where the first of its rows stands.
        stream: what runs it; tasks of one stream follow one another.
        worker: whose work it is; "" for a transfer or collective.
        recorded_s: start and end in the step; None if it is no pass, or clocks differ.
        durations_s: as each of its workers recorded it.
        after: tasks before it, of all its workers.
    """

    name: str
    place: Location
    stream: str
    worker: str = ""
    recorded_s: tuple[float, float] | None = None
    durations_s: list[float] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


@dataclass(eq=False)
class TracedStep:
    """The tasks of a step.

    Args:
        tasks: in the order in which workers began them.
        measured_s: time of the step in the trace.
        num_workers: workers of the step.
        durations_s: [tasks], what each task takes once all its workers are there.
        typical_s: [tasks], what each would take without stragglers.
    """

    tasks: Sequence[StepTask]
    measured_s: float
    num_workers: int
    durations_s: Floats
    typical_s: Floats

    @cached_property
    def program(self) -> Program:
        """The program with the recorded durations."""
        return Program.of(
            Task(task.name, task.stream, duration_s, (*dict.fromkeys(task.after),))
            for task, duration_s in zip(self.tasks, self.durations_s.tolist(), strict=True)
        )

    @cached_property
    def replay(self) -> tuple[Floats, Floats]:
        """[tasks], starts and ends with the recorded durations.

        Raises:
            InputError: workers wait for each other in a circle (E869).
        """
        try:
            timeline = simulate(self.program)
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
        return timeline.start_s, timeline.end_s

    @property
    def time_s(self) -> float:
        """Time of the step with the recorded durations."""
        return float(self.replay[1].max())

    @property
    def largest_pass_error(self) -> float:
        """The largest difference of a pass's start or end from the trace, in steps."""
        start_s, end_s = self.replay
        errors = [0.0]
        for number, task in enumerate(self.tasks):
            if task.recorded_s:
                errors.append(abs(start_s[number] - task.recorded_s[0]))
                errors.append(abs(end_s[number] - task.recorded_s[1]))
        return float(max(errors)) / self.measured_s

    def step_s(self, usual_s: Floats, changed: Sequence[tuple[Sequence[int], Floats]]) -> Floats:
        """[changes], time of the step with the durations of some tasks changed.

        Args:
            usual_s: [tasks], durations of all other tasks.
            changed: of each change its tasks, and [tasks] the durations that these take.
        """
        times = np.empty(len(changed))
        size = max(1, _MOST_DRAWN // len(usual_s))
        for first in range(0, len(changed), size):
            block = changed[first : first + size]
            drawn_s = np.repeat(usual_s[None], len(block), axis=0)
            for draw, (tasks, durations_s) in enumerate(block):
                drawn_s[draw, tasks] = durations_s[tasks]
            ends_s = simulate(Program(self.program.graph, drawn_s)).end_s
            times[first : first + size] = ends_s.max(axis=1)
        return times


class StepBuilder:
    """Collects the tasks of a step, worker by worker."""

    def __init__(self) -> None:
        self._tasks: list[StepTask] = []
        self._of_key: dict[Hashable, int] = {}
        self._expected: list[int] = []

    def add(
        self,
        key: Hashable,
        num_workers: int,
        duration_s: float,
        after: Iterable[int],
        task: StepTask,
    ) -> int:
        """Add an op of a worker; return the number of its task.

        Args:
            key: equal for the ops of all workers that meet.
            num_workers: how many meet.
            duration_s: as this worker recorded it.
            after: tasks before it.
            task: what it is, if this is its first worker.
        """
        number = self._of_key.setdefault(key, len(self._tasks))
        if number == len(self._tasks):
            self._tasks.append(task)
            self._expected.append(num_workers)
        self._tasks[number].durations_s.append(duration_s)
        self._tasks[number].after.extend(after)
        return number

    def finish(
        self,
        measured_s: float,
        num_workers: int,
        typical: Callable[[Floats], Floats],
    ) -> TracedStep:
        """Return the step; `typical` returns its typical durations.

        Raises:
            InputError: a transfer or a collective lacks a worker (E868), or the step takes no time
                (E866).
        """
        for task, expected in zip(self._tasks, self._expected, strict=True):
            present = len(task.durations_s)
            if present != expected:
                message = f"the {task.name} has {present} of {expected} workers"
                reason = "a transfer or a collective waits for all of its workers"
                fix = "give the traces of all ranks of the step, each once"
                raise InputError.of("E868", message, task.place, fix, reason)
        if not measured_s > 0:
            place = Location(self._tasks[0].place.file)
            raise InputError.of("E866", "the step takes no time", place, "write times in seconds")
        durations_s = np.array([min(task.durations_s) for task in self._tasks])
        return TracedStep(self._tasks, measured_s, num_workers, durations_s, typical(durations_s))


_LEAST_SAVING = 0.005
_MOST_LISTED = 8


@dataclass(frozen=True, slots=True)
class Suspect(PlainData):
    """A rank whose work may slow the step down.

    Args:
        kind: worker.
        name: which one.
        without_s: time of the step if its work took typical durations.
        saving: share of the step that this saves.
        alone: the step in which only its work keeps its durations, relative to the typical step.
        passes: its work relative to the typical one.
    """

    json_fields: ClassVar = keys("kind name without_s saving alone relative_passes=passes")

    kind: str
    name: str
    without_s: float
    saving: float
    alone: float
    passes: float


@dataclass(frozen=True, slots=True)
class StragglerReport(PlainData):
    """The stragglers of a step.

    Args:
        measured_s: time of the step in the trace.
        replayed_s: time of the step from its durations alone.
        typical_s: time of the step if all work were typical.
        largest_pass_error: the largest difference of a pass's start or end, in steps.
        num_workers: workers of the step.
        suspects: the ranks that cost most, by saving.
        culprit: the first of them if it costs half a percent of the step.
    """

    json_fields: ClassVar = keys(
        """measured_s replayed_s typical_s slowdown launch_delays largest_pass_error num_workers
        culprit suspects"""
    )

    measured_s: float
    replayed_s: float
    typical_s: float
    largest_pass_error: float
    num_workers: int
    suspects: tuple[Suspect, ...]
    culprit: Suspect | None

    @property
    def slowdown(self) -> float:
        """The step relative to the typical one."""
        return self.replayed_s / self.typical_s

    @property
    def launch_delays(self) -> float:
        """The traced step relative to the replayed one: gaps between the ops of workers."""
        return self.measured_s / self.replayed_s


def find_stragglers(step: TracedStep) -> StragglerReport:
    """Run a step again without each suspect, and name the one that costs most."""
    step.replay  # noqa: B018 - refuses workers that wait for each other
    typical_s = float(step.step_s(step.typical_s, [([], step.typical_s)])[0])
    tasks_of: dict[str, list[int]] = defaultdict(list)
    for number, task in enumerate(step.tasks):
        if task.worker:
            tasks_of[task.worker].append(number)
    changed = [(tasks, step.typical_s) for tasks in tasks_of.values()]
    unchanged = [(tasks, step.durations_s) for tasks in tasks_of.values()]
    without_s = step.step_s(step.durations_s, changed)
    alone_s = step.step_s(step.typical_s, unchanged)
    suspects = [
        Suspect(
            "worker",
            name,
            float(without_s[place]),
            float(1 - without_s[place] / step.time_s),
            float(alone_s[place] / typical_s),
            float(step.durations_s[tasks].sum() / step.typical_s[tasks].sum()),
        )
        for place, (name, tasks) in enumerate(tasks_of.items())
    ]
    suspects.sort(key=lambda suspect: -suspect.saving)
    return StragglerReport(
        measured_s=step.measured_s,
        replayed_s=step.time_s,
        typical_s=typical_s,
        largest_pass_error=step.largest_pass_error,
        num_workers=step.num_workers,
        suspects=tuple(suspects[:_MOST_LISTED]),
        culprit=suspects[0] if suspects[0].saving >= _LEAST_SAVING else None,
    )


def straggler_view(report: StragglerReport) -> View:
    """Show the step, the suspects, and the one that costs most."""
    error = f"work starts and ends within {report.largest_pass_error:.1%} of the step"
    facts = Facts(
        [
            ("step", f"{format_seconds(report.measured_s)}, {report.num_workers} ranks"),
            ("replayed", f"{format_seconds(report.replayed_s)}, {error}"),
            ("slowdown by stragglers", f"{report.slowdown:.3f}"),
            ("slowdown by gaps", f"{report.launch_delays:.3f}"),
        ]
    )
    columns = [
        Column("name", "rank", TEXT),
        Column("passes", "work\nx typical", FOUR_DIGITS),
        Column("without_s", "step\nwithout it", SECONDS),
        Column("saving", "saves", SHARE),
        Column("alone", "slowdown\nif alone", FOUR_DIGITS),
    ]
    rows = [
        Row((each.name, each.passes, each.without_s, each.saving, each.alone))
        for each in report.suspects
    ]
    notes = remarks(
        [
            "Typical is the mean of ranks that work between the same meetings. Without a rank its "
            "work is typical; for the slowdown if alone, that of all others is."
        ]
    )
    table = Table("suspects", "The ranks that cost most", columns, rows)
    return View([facts, table, notes, _verdict(report)])


def _verdict(report: StragglerReport) -> Verdict:
    culprit = report.culprit
    if culprit is None:
        return Verdict(True, "no rank costs half a percent of the step")
    words = f"{culprit.name}: without it the step takes {format_seconds(culprit.without_s)}"
    return Verdict(True, f"{words}, {culprit.saving:.1%} less", doubt="STRAGGLER")
