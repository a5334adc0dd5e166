"""Where a stage's seconds go. Each stage's parts add up to the iteration time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from simtrain.engine import Timeline
from simtrain.engine.intervals import Interval, common_s, merged
from simtrain.programs.optimizer_step import EMBEDDING_STREAM, MODEL_STREAM, data_stream
from simtrain.programs.pass_layout import PassTime
from simtrain.programs.pipeline import stage_stream
from simtrain.schedules import Action, Schedule


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds by cause; communication is what is exposed, hidden communication costs nothing.

    `launch_s` is the time in which a device waits for its host; `bubble_s` is what remains idle.
    """

    compute_s: float = 0.0
    recompute_s: float = 0.0
    launch_s: float = 0.0
    tensor_communication_s: float = 0.0
    pipeline_communication_s: float = 0.0
    data_communication_s: float = 0.0
    bubble_s: float = 0.0
    optimizer_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All parts."""
        return math.fsum(getattr(self, field.name) for field in fields(self))


def breakdown_by_name(breakdown: Breakdown) -> dict[str, float]:
    """Seconds by cause: compute, recompute, ..., bubble, optimizer."""
    return {name.removesuffix("_s"): seconds for name, seconds in asdict(breakdown).items()}


def mean_breakdown(stages: Sequence[Breakdown]) -> Breakdown:
    """The average over the stages."""
    names = [field.name for field in fields(Breakdown)]
    return Breakdown(
        **{
            name: math.fsum(getattr(stage, name) for stage in stages) / len(stages)
            for name in names
        }
    )


def stage_breakdowns(
    timeline: Timeline,
    schedule: Schedule,
    actions: Iterable[Action],
    action_time: Callable[[Action], PassTime],
) -> tuple[Breakdown, ...]:
    """One breakdown a stage; `actions` are all that were simulated."""
    queues = timeline.program.queues()
    ran: list[Counter[PassTime]] = [Counter() for _ in range(schedule.num_stages)]
    for action in actions:
        ran[schedule.rank_of(action.virtual_stage)][action_time(action)] += 1
    elsewhere = _elsewhere(timeline, queues, schedule.num_stages)
    makespan_s = timeline.makespan_s
    return tuple(
        _stage(
            _Lane(timeline, queues.get(stage_stream(stage), []), makespan_s),
            ran[stage],
            elsewhere[stage],
        )
        for stage in range(schedule.num_stages)
    )


@dataclass(slots=True)
class _Elsewhere:
    """What runs on other streams and may keep a stage waiting, by the part it counts to."""

    pipeline: list[Interval]
    data: list[Interval]
    optimizer: list[Interval]


def _elsewhere(
    timeline: Timeline, queues: Mapping[str, list[int]], num_stages: int
) -> list[_Elsewhere]:
    """For each stage: transfers it takes part in, its gradient buckets, and the norm."""

    def intervals(stream: str) -> list[Interval]:
        return [(timeline.start_s[t], timeline.end_s[t]) for t in queues.get(stream, [])]

    stages = [
        _Elsewhere([], intervals(data_stream(stage)), intervals(MODEL_STREAM))
        for stage in range(num_stages)
    ]
    for stream in queues:
        kind, _, ends = stream.partition(" ")
        if kind in ("link", "wrap"):
            for stage in {int(end) for end in ends.split("->")}:
                stages[stage].pipeline.extend(intervals(stream))
    for stage in {0, num_stages - 1}:
        stages[stage].pipeline.extend(intervals(EMBEDDING_STREAM))
    return stages


PARTS = {
    # Of a task of a stage's own stream that is no forward or backward pass.
    "arrival": "pipeline_communication_s",
    "synchronize": "pipeline_communication_s",
    "data": "data_communication_s",
    "parameter gather": "data_communication_s",
    "tensor": "tensor_communication_s",
    "optimizer": "optimizer_s",
}


@dataclass(frozen=True, slots=True)
class _Lane:
    """A stage's own stream: its tasks in order, and when the whole iteration ends."""

    timeline: Timeline
    queue: Sequence[int]
    makespan_s: float

    def busy(self) -> list[Interval]:
        start_s, end_s = self.timeline.start_s, self.timeline.end_s
        return [(start_s[task], end_s[task]) for task in self.queue]

    def seconds_by_part(self) -> dict[str, float]:
        """Seconds of the tasks that are no forward or backward pass."""
        seconds = {field.name: 0.0 for field in fields(Breakdown)}
        tasks = self.timeline.program.tasks
        for task, (start_s, end_s) in zip(self.queue, self.busy(), strict=True):
            if (part := PARTS.get(tasks[task].kind)) is not None:
                seconds[part] += end_s - start_s
        return seconds


def _stage(lane: _Lane, ran: Counter[PassTime], elsewhere: _Elsewhere) -> Breakdown:
    parts = lane.seconds_by_part()
    add_actions(parts, ran)
    gaps = _gaps(lane.busy(), lane.makespan_s)
    # A gap in which several run is counted once, to the first of them.
    running: list[Interval] = []
    explained_s = 0.0
    for part, intervals in (
        ("pipeline_communication_s", elsewhere.pipeline),
        ("data_communication_s", elsewhere.data),
        ("optimizer_s", elsewhere.optimizer),
    ):
        running = merged([*running, *intervals])
        covered_s = common_s(gaps, running)
        parts[part] += covered_s - explained_s
        explained_s = covered_s
    parts["bubble_s"] = max(0.0, lane.makespan_s - math.fsum(parts.values()))
    return Breakdown(**parts)


def add_actions(parts: dict[str, float], ran: Mapping[PassTime, int]) -> None:
    """Add the parts of so many forward and backward passes."""
    for time, number in ran.items():
        parts["compute_s"] += number * time.compute_s
        parts["recompute_s"] += number * time.recompute_s
        parts["launch_s"] += number * time.launch_s
        parts["tensor_communication_s"] += number * time.exposed_communication_s
        parts["data_communication_s"] += number * time.exposed_data_s


def _gaps(busy: Sequence[Interval], makespan_s: float) -> list[Interval]:
    """The times between 0 and the end in which a stream runs nothing."""
    ends = [0.0, *(end for _, end in busy)]
    starts = [*(start for start, _ in busy), makespan_s]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if start > end]
