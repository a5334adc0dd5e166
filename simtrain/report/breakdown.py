"""Where a stage's seconds go. Each stage's parts add up to the iteration time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from simtrain.engine import Span, Timeline
from simtrain.programs.chunk import ActionTime
from simtrain.programs.iteration import EMBEDDING_STREAM, MODEL_STREAM, data_stream
from simtrain.programs.pipeline import stage_stream
from simtrain.schedules import Action, Schedule

Interval = tuple[float, float]


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
    timeline: Timeline, schedule: Schedule, action_time: Callable[[Action], ActionTime]
) -> tuple[Breakdown, ...]:
    """One breakdown a stage."""
    spans = list(timeline.spans())
    by_stream: dict[str, list[Span]] = {}
    for span in spans:
        by_stream.setdefault(span.stream, []).append(span)
    transfers = _by_stage(by_stream)
    return tuple(
        _stage(
            by_stream.get(stage_stream(stage), []),
            _Idle(
                transfers.get(stage, []),
                [(s.start_s, s.end_s) for s in by_stream.get(data_stream(stage), [])],
                _of(by_stream, EMBEDDING_STREAM) if stage in _ends(schedule) else [],
                _of(by_stream, MODEL_STREAM),
            ),
            action_time,
            timeline.makespan_s,
        )
        for stage in range(schedule.num_stages)
    )


@dataclass(frozen=True, slots=True)
class _Idle:
    """What may be running elsewhere while a stage's own stream does nothing."""

    transfers: list[Interval]
    data: list[Interval]
    embedding: list[Interval]
    norm: list[Interval]


def _stage(
    spans: Sequence[Span],
    idle: _Idle,
    action_time: Callable[[Action], ActionTime],
    makespan_s: float,
) -> Breakdown:
    parts = {field.name: 0.0 for field in fields(Breakdown)}
    actions: set[str] = set()
    for span in spans:
        if span.kind in ("forward", "backward"):
            actions.add(span.name)
        elif span.kind in ("arrival", "synchronize"):
            parts["pipeline_communication_s"] += span.duration_s
        elif span.kind == "data":
            parts["data_communication_s"] += span.duration_s
        elif span.kind == "tensor":
            parts["tensor_communication_s"] += span.duration_s
        else:
            parts["optimizer_s"] += span.duration_s
    for name in sorted(actions):
        time = action_time(Action.parse(name))
        parts["compute_s"] += time.compute_s
        parts["recompute_s"] += time.recompute_s
        parts["launch_s"] += time.launch_s
        parts["tensor_communication_s"] += time.exposed_communication_s
    gaps = _gaps([(s.start_s, s.end_s) for s in spans], makespan_s)
    parts["pipeline_communication_s"] += _common_s(gaps, idle.transfers)
    parts["pipeline_communication_s"] += _common_s(gaps, idle.embedding)
    parts["data_communication_s"] += _common_s(gaps, idle.data)
    parts["optimizer_s"] += _common_s(gaps, idle.norm)
    parts["bubble_s"] = makespan_s - math.fsum(parts.values())
    return Breakdown(**parts)


def _by_stage(by_stream: dict[str, list[Span]]) -> dict[int, list[Interval]]:
    """The transfers in which each stage takes part, merged where they overlap."""
    found: dict[int, list[Interval]] = {}
    for stream, spans in by_stream.items():
        kind, _, ends = stream.partition(" ")
        if kind not in ("link", "wrap"):
            continue
        for stage in {int(end) for end in ends.split("->")}:
            found.setdefault(stage, []).extend((s.start_s, s.end_s) for s in spans)
    return {stage: _merged(intervals) for stage, intervals in found.items()}


def _of(by_stream: dict[str, list[Span]], stream: str) -> list[Interval]:
    return [(span.start_s, span.end_s) for span in by_stream.get(stream, [])]


def _ends(schedule: Schedule) -> tuple[int, int]:
    return 0, schedule.num_stages - 1


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start_s, end_s in sorted(intervals):
        if merged and start_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end_s)
        else:
            merged.append((start_s, end_s))
    return merged


def _gaps(busy: Sequence[Interval], makespan_s: float) -> list[Interval]:
    """The times between 0 and the end in which a stream runs nothing."""
    ends = [0.0, *(end for _, end in busy)]
    starts = [*(start for start, _ in busy), makespan_s]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if start > end]


def _common_s(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Seconds that lie in both; each list is sorted and free of overlaps."""
    total_s = 0.0
    i = j = 0
    while i < len(first) and j < len(second):
        low = max(first[i][0], second[j][0])
        high = min(first[i][1], second[j][1])
        total_s += max(0.0, high - low)
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total_s
