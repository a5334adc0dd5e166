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

from simtrain.costs.price import Pricer
from simtrain.engine import Interference, Program, ProgramBuilder, Timeline, simulate
from simtrain.engine.intervals import Interval, merged, outside_s
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Collective, Group, Op, Phase

HOST, COMPUTE, COMMUNICATION, DATA = "host", "compute", "communication", "data"


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


def chunk_program(order: IssueOrder, pricer: Pricer) -> tuple[Program, tuple[int, ...]]:
    """The program of a chunk's pass, and the task of each op in issue order."""
    builder = ProgramBuilder()
    issue_s = pricer.profile.host.issue.value
    tasks: list[int] = []
    for node in order.nodes:
        launch = builder.add(f"launch {node.op.name}", HOST, issue_s, kind="launch")
        after = (launch, *(tasks[position] for position in node.after))
        duration_s = pricer.cost(node.op).duration_s
        tasks.append(
            builder.add(
                node.op.name, _stream(node.op), duration_s, after, node.op.phase, contends=True
            )
        )
    slowdown = pricer.profile.overlap.slowdown.value
    side_by_side = {
        COMPUTE: Interference((COMMUNICATION, DATA), slowdown),
        COMMUNICATION: Interference((COMPUTE,), slowdown),
        DATA: Interference((COMPUTE,), slowdown),
    }
    return builder.build(side_by_side), tuple(tasks)


def _stream(op: Op) -> str:
    if not isinstance(op, Collective):
        return COMPUTE
    return DATA if op.group is Group.DATA else COMMUNICATION


def simulate_chunk(order: IssueOrder, pricer: Pricer) -> ActionTime:
    """Run a chunk's pass on the engine and say where its time goes."""
    program, tasks = chunk_program(order, pricer)
    timeline = simulate(program)
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
