"""From the ops of a chunk to a program for the engine, and to what its simulation says.

Four streams: the host, which launches one kernel after another and runs ahead of the device;
compute; and communication, over data parallelism and over others. A kernel starts when it has been
launched, when its stream is free, and when what it waits for has ended. While a kernel and a
collective run side by side they slow each other down: they share multiprocessors, memory bandwidth
and power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from simtrain.costs.price import Pricer
from simtrain.engine import Interference, Pattern, Program, ProgramBuilder, Timeline, simulate
from simtrain.engine.intervals import Interval, merged, outside_s
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Collective, Group, Op, Phase, Work

HOST, COMPUTE, COMMUNICATION, DATA = "host", "compute", "communication", "data"
LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class ActionTime:
    """Where the seconds of one forward or backward pass of a chunk go; the parts add up.

    Of communication it is what is exposed; where both kinds of it run, it counts to the other than
    data parallelism's. `layer_ends_s` are the moments at which each layer's work has ended.
    """

    compute_s: float
    recompute_s: float
    exposed_communication_s: float
    exposed_data_s: float
    launch_s: float
    layer_ends_s: tuple[float, ...]

    @property
    def duration_s(self) -> float:
        """Seconds from the first launch to the last kernel's end."""
        return math.fsum(
            (
                self.compute_s,
                self.recompute_s,
                self.exposed_communication_s,
                self.exposed_data_s,
                self.launch_s,
            )
        )


@dataclass(frozen=True)
class PassPattern:
    """A pass of a chunk on streams; slots are what `op_slots` names, and `LAUNCH`.

    `tasks` are those of the ops in issue order, `layer_ends` how many of them have been issued when
    a layer ends.
    """

    pattern: Pattern
    tasks: tuple[int, ...]
    layer_ends: tuple[int, ...]

    def repeated(self, first: int, last: int, times: int) -> PassPattern:
        """The same with the layers from `first` up to `last`, as they are issued, so often more."""
        start, end = self.layer_ends[first - 1], self.layer_ends[last - 1]
        longer = [number * (end - start) for number in range(1, times + 1)]
        ends = self.layer_ends
        return PassPattern(
            # A launch and an op for each that is issued.
            self.pattern.repeated(2 * start, 2 * end, times),
            tuple(range(1, 2 * (len(self.tasks) + times * (end - start)), 2)),
            (
                *ends[:last],
                *(one + more for more in longer for one in ends[first:last]),
                *(one + times * (end - start) for one in ends[last:]),
            ),
        )


OpSlot: TypeAlias = tuple[str, Phase, int]


def op_slots(order: IssueOrder) -> list[OpSlot]:
    """For each op its name, its phase, and a number where another op has both but costs more."""
    works: dict[tuple[str, Phase], dict[Work, int]] = {}
    slots = []
    for node in order.nodes:
        known = works.setdefault((node.op.name, node.op.phase), {})
        slots.append((node.op.name, node.op.phase, known.setdefault(node.op.work, len(known))))
    return slots


def pass_pattern(order: IssueOrder, slowdown: float) -> PassPattern:
    """Put a chunk's ops on streams, where kernels and collectives side by side slow each other."""
    builder = ProgramBuilder()
    tasks: list[int] = []
    for node, slot in zip(order.nodes, op_slots(order), strict=True):
        op = node.op
        launch = builder.add(f"launch {op.name}", HOST, LAUNCH, kind="launch")
        after = (launch, *(tasks[position] for position in node.after))
        tasks.append(builder.add(op.name, _stream(op), slot, after, op.phase, contends=True))
    side_by_side = {
        COMPUTE: Interference((COMMUNICATION, DATA), slowdown),
        COMMUNICATION: Interference((COMPUTE,), slowdown),
        DATA: Interference((COMPUTE,), slowdown),
    }
    return PassPattern(builder.pattern(side_by_side), tuple(tasks), tuple(order.layer_ends))


def slot_seconds(order: IssueOrder, pricer: Pricer) -> dict[OpSlot | str, float]:
    """Seconds of each slot of a pass that has these ops."""
    seconds: dict[OpSlot | str, float] = {LAUNCH: pricer.profile.host.issue.value}
    for node, slot in zip(order.nodes, op_slots(order), strict=True):
        seconds[slot] = pricer.cost(node.op).duration_s
    return seconds


def chunk_program(order: IssueOrder, pricer: Pricer) -> tuple[Program, tuple[int, ...]]:
    """The program of a chunk's pass, and the task of each op in issue order."""
    laid_out = pass_pattern(order, pricer.profile.overlap.slowdown.value)
    return laid_out.pattern.program(slot_seconds(order, pricer).__getitem__), laid_out.tasks


def _stream(op: Op) -> str:
    if not isinstance(op, Collective):
        return COMPUTE
    return DATA if op.group is Group.DATA else COMMUNICATION


def simulate_chunk(order: IssueOrder, pricer: Pricer) -> ActionTime:
    """Run a chunk's pass on the engine and say where its time goes."""
    program, tasks = chunk_program(order, pricer)
    timeline = simulate(program, "simpy")
    compute_s = recompute_s = 0.0
    for task in tasks:
        span = timeline.span(task)
        if span.stream == COMPUTE:
            if span.kind == Phase.RECOMPUTE:
                recompute_s += span.duration_s
            else:
                compute_s += span.duration_s
    busy, exchanging = _intervals(timeline, COMPUTE), _intervals(timeline, COMMUNICATION)
    exposed_s = outside_s(exchanging, busy)
    data_s = outside_s(_intervals(timeline, DATA), merged([*busy, *exchanging]))
    ends = [max(timeline.end_s[task] for task in tasks[:count]) for count in order.layer_ends]
    return ActionTime(
        compute_s,
        recompute_s,
        exposed_s,
        data_s,
        max(0.0, timeline.makespan_s - compute_s - recompute_s - exposed_s - data_s),
        tuple(ends),
    )


def _intervals(timeline: Timeline, stream: str) -> list[Interval]:
    """When a stream runs something."""
    spans = (span for span in timeline.spans() if span.duration_s > 0)
    return [(span.start_s, span.end_s) for span in spans if span.stream == stream]
