"""From the ops of a chunk to a program for the engine, and to what its simulation says.

Three streams: the host, which launches one kernel after another and runs ahead of the device;
compute; and communication. A kernel starts when it has been launched, when its stream is free,
and when what it waits for has ended. While a kernel and a collective run side by side they slow
each other down: they share multiprocessors, memory bandwidth and power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simtrain.costs.price import Pricer
from simtrain.engine import Interference, Program, ProgramBuilder, Timeline, simulate
from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Collective, Phase

HOST, COMPUTE, COMMUNICATION = "host", "compute", "communication"


@dataclass(frozen=True, slots=True)
class ActionTime:
    """Where the seconds of one forward or backward pass of a chunk go; the parts add up.

    `layer_ends_s` are the moments at which each layer's work has ended.
    """

    compute_s: float
    recompute_s: float
    exposed_communication_s: float
    launch_s: float
    layer_ends_s: tuple[float, ...]

    @property
    def duration_s(self) -> float:
        """Seconds from the first launch to the last kernel's end."""
        return math.fsum(
            (self.compute_s, self.recompute_s, self.exposed_communication_s, self.launch_s)
        )


def chunk_program(order: IssueOrder, pricer: Pricer) -> tuple[Program, tuple[int, ...]]:
    """The program of a chunk's pass, and the task of each op in issue order."""
    builder = ProgramBuilder()
    issue_s = pricer.profile.host.issue.value
    tasks: list[int] = []
    for node in order.nodes:
        stream = COMMUNICATION if isinstance(node.op, Collective) else COMPUTE
        launch = builder.add(f"launch {node.op.name}", HOST, issue_s, kind="launch")
        after = (launch, *(tasks[position] for position in node.after))
        duration_s = pricer.cost(node.op).duration_s
        tasks.append(
            builder.add(node.op.name, stream, duration_s, after, node.op.phase, contends=True)
        )
    slowdown = pricer.profile.overlap.slowdown.value
    side_by_side = {
        COMPUTE: Interference((COMMUNICATION,), slowdown),
        COMMUNICATION: Interference((COMPUTE,), slowdown),
    }
    return builder.build(side_by_side), tuple(tasks)


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
    exposed_s = _exposed_s(timeline)
    ends = [max(timeline.end_s[task] for task in tasks[:count]) for count in order.layer_ends]
    return ActionTime(
        compute_s,
        recompute_s,
        exposed_s,
        max(0.0, timeline.makespan_s - compute_s - recompute_s - exposed_s),
        tuple(ends),
    )


def _exposed_s(timeline: Timeline) -> float:
    """Seconds in which the communication stream runs and the compute stream does not."""
    spans = [span for span in timeline.spans() if span.duration_s > 0]
    busy = [(s.start_s, s.end_s) for s in spans if s.stream == COMPUTE]
    total_s = 0.0
    first = 0
    for start_s, end_s in ((s.start_s, s.end_s) for s in spans if s.stream == COMMUNICATION):
        while first < len(busy) and busy[first][1] <= start_s:
            first += 1
        at = first
        while at < len(busy) and busy[at][0] < end_s:
            total_s += max(0.0, busy[at][0] - start_s)
            start_s = busy[at][1]
            at += 1
        total_s += max(0.0, end_s - start_s)
    return total_s
