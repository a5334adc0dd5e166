"""From the ops of a pass to tasks on streams, and to where the seconds of its simulation go.

Four streams: the host, which launches one kernel after another and runs ahead of the device;
compute; and communication, over data parallelism and over others. A kernel starts when it has been
launched, when its stream is free, and when what it waits for has ended. While a kernel and a
collective run side by side they slow each other down: they share multiprocessors, memory bandwidth
and power.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from simtrain.engine import Interference, Program, ProgramBuilder, Timeline, simulate
from simtrain.engine.intervals import Interval, merged, outside_s
from simtrain.workload.issue import Stream, stream_of
from simtrain.workload.ops import Phase
from simtrain.workload.passes import PassRecord
from simtrain.workload.work import Work

HOST = "host"
COMPUTE, COMMUNICATION, DATA = (stream.name.lower() for stream in Stream)


@dataclass(frozen=True, slots=True)
class PassTime:
    """Where the seconds of one forward or backward pass of a chunk go; the parts add up.

    Communication fields count exposed time only. When a data-parallel and another collective are
    exposed at the same time, the time is charged to the other one. `layer_ends_s` are the moments
    at which each layer's work has ended.
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


@dataclass(frozen=True, slots=True)
class PassMachine:
    """What decides how long a pass takes: of its work, of a launch, of kernels beside collectives.

    `seconds` are those of an op's work run alone.
    """

    seconds: Callable[[Work], float]
    launch_s: float
    slowdown: float


def pass_program(record: PassRecord, machine: PassMachine) -> tuple[Program, tuple[int, ...]]:
    """The program of a pass, and the task of each op in issue order."""
    builder = ProgramBuilder()
    tasks: list[int] = []
    for op, waits in zip(record.ops, record.waits(), strict=True):
        launch = builder.add(f"launch {op.name}", HOST, machine.launch_s, kind="launch")
        after = (launch, *(tasks[position] for position in waits))
        stream = stream_of(op).name.lower()
        seconds = machine.seconds(op.work)
        tasks.append(builder.add(op.name, stream, seconds, after, op.phase, contends=True))
    return builder.build(_interference(machine.slowdown)), tuple(tasks)


def _interference(slowdown: float) -> dict[str, Interference]:
    return {
        COMPUTE: Interference((COMMUNICATION, DATA), slowdown),
        COMMUNICATION: Interference((COMPUTE,), slowdown),
        DATA: Interference((COMPUTE,), slowdown),
    }


def simulate_pass(record: PassRecord, machine: PassMachine) -> PassTime:
    """Run a pass with SimPy and say where its time goes."""
    program, tasks = pass_program(record, machine)
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
    ends = [max(timeline.end_s[task] for task in tasks[:count]) for count in record.layer_ends]
    return PassTime(
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
