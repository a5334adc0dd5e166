"""Makes the ops of a pass tasks on streams, simulates them, and breaks down the time.

There are five streams: the host, which launches kernels and runs ahead of the GPU; compute; and
three for data-parallel collectives, collectives between equal shards, and other collectives. A
kernel starts when it is launched, its stream is free, and the tasks that it waits for have ended.
Concurrent kernels and collectives share the GPU: its multiprocessors, memory bandwidth and power.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simtrain.engine import (
    Engine,
    LinkLoads,
    Program,
    TaskGraph,
    Timeline,
    exposed_seconds,
    find_idle_seconds,
    simulate,
)
from simtrain.engine.compiled import Floats, Ints
from simtrain.engine.program import rows_of, starts_of
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.ops import Op, Phase
from simtrain.workload.passes import PassRecord
from simtrain.workload.work import Work

HOST, COMPUTE, COMMUNICATION = "host", "compute", "communication"
DATA, SHARDS = "data", "equal shards"
STREAMS = HOST, COMPUTE, COMMUNICATION, DATA, SHARDS
"""Streams by number: the host, then those of `Stream`."""

_KINDS = ("launch", *Phase)

# Arguments of `idle_seconds` for exposed communication: category 0 are collectives that are not
# data-parallel, category 1 are data-parallel ones.
_OWN = np.array([STREAMS.index(COMPUTE)], np.int32)
_OTHERS = np.array([[STREAMS.index(stream) for stream in (COMMUNICATION, DATA, SHARDS)]], np.int32)
_PART_OF = np.array([[0, 1, 1]], np.int32)


@dataclass(frozen=True, slots=True)
class PassTime:
    """Time of a pass of a chunk by cause; the causes add up to the duration.

    Communication fields count exposed time only. When a data-parallel and another collective are
    exposed at the same time, the time is charged to the other one. `layer_ends_s` are the ends of
    the layers' work.
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
        exposed_s = self.exposed_communication_s, self.exposed_data_s
        return math.fsum((self.compute_s, self.recompute_s, *exposed_s, self.launch_s))


@dataclass(frozen=True, slots=True)
class PassMachine:
    """The properties of a machine that determine the time of a pass.

    Args:
        seconds: returns the time of an op's work that runs alone.
        launch_s: time in which the host launches a kernel.
        load: returns the fraction of the GPU that an op's work uses at full speed.
    """

    seconds: Callable[[Work], float]
    launch_s: float
    load: Callable[[Work], float]


def simulate_pass(record: PassRecord, machine: PassMachine, engine: Engine = "auto") -> PassTime:
    """Simulate a pass and break down its time; all engines agree to the last bit."""
    timeline, (graph, _) = simulate(pass_program(record, machine), engine), _graph(record)
    ends_s, makespan_s = timeline.end_s[1::2], timeline.makespan_s
    is_kernel = graph.stream_of[1::2] == STREAMS.index(COMPUTE)
    is_recompute = graph.kind_of[1::2][is_kernel] == _KINDS.index(Phase.RECOMPUTE)
    kernel_s = (ends_s - timeline.start_s[1::2])[is_kernel]
    compute_s, recompute_s = np.bincount(is_recompute, kernel_s, 2).tolist()
    exposed_s, data_s = find_idle_seconds(timeline, _OWN, _OTHERS, _PART_OF, engine)[0].tolist()
    last_ops = np.array(record.starts)[[*record.layer_ends]] - 1
    return PassTime(
        compute_s,
        recompute_s,
        exposed_s,
        data_s,
        max(0.0, makespan_s - compute_s - recompute_s - exposed_s - data_s),
        tuple(np.maximum.accumulate(ends_s)[last_ops].tolist()),
    )


def seconds_of_ops(timeline: Timeline) -> tuple[list[float], list[float]]:
    """Return [ops], the time of each op and its exposed time, from the timeline of a pass.

    Kernels are always exposed; a collective is exposed while no kernel runs. When collectives on
    several streams are exposed at the same time, the time is charged as in `PassTime`. So exposed
    times add up to the duration of the pass, except for times in which nothing runs (launches).
    """
    exposed_s = exposed_seconds(timeline, range(STREAMS.index(COMPUTE), len(STREAMS)))
    return (timeline.end_s - timeline.start_s)[1::2].tolist(), exposed_s[1::2].tolist()


def pass_program(record: PassRecord, machine: PassMachine) -> Program:
    """Return the program of a pass: task 2i launches op i, which is task 2i + 1."""
    graph, runs_side_by_side = _graph(record)
    duration_s = np.full(graph.num_tasks, machine.launch_s)
    duration_s[1::2] = _of_ops(record, machine.seconds)
    if not runs_side_by_side:
        return Program(graph, duration_s)
    # Launches and copy engines put no load on the GPU.
    load = np.zeros(len(duration_s))
    load[1::2] = _of_ops(record, machine.load)
    loaded = load[load > 0]
    device, weight = np.zeros(len(loaded), np.int32), np.ones(len(load))
    link_loads = LinkLoads(np.ones(1), starts_of(load > 0), device, loaded, weight)
    return Program(graph, duration_s, link_loads)


def _of_ops(record: PassRecord, value: Callable[[Work], float]) -> Floats:
    """Return [ops], a value of each op's work."""
    different = dict.fromkeys(record.segments)
    values = {
        segment: np.array([value(op.work) for op in segment.ops], float) for segment in different
    }
    return np.concatenate([values[segment] for segment in record.segments])


@functools.lru_cache(maxsize=4096)
def _arrays(segment: Segment) -> tuple[Ints, Ints, Ints]:
    """Return stream and phase of each op, and pairs of an op and a collective that it waits for."""
    waits = [(i, other) for i, others in enumerate(segment.waits) for other in others]
    return (
        np.array([stream_of(op) for op in segment.ops], np.int8),
        np.array([_KINDS.index(op.phase) for op in segment.ops], np.int8),
        np.array(waits, np.int32).reshape(-1, 2),
    )


@functools.lru_cache(maxsize=1024)
def _graph(record: PassRecord) -> tuple[TaskGraph, bool]:
    """Return the tasks of a pass, and whether a collective can overlap another op.

    An op waits for its launch and awaited collectives. A collective waits for the previous kernel.
    """
    of_segments = zip(*map(_arrays, record.segments), strict=True)
    streams, phases, waits = map(np.concatenate, of_segments)
    num_waits = [len(_arrays(segment)[2]) for segment in record.segments]
    waits += np.repeat(np.array(record.starts[:-1], np.int32), num_waits)[:, np.newaxis]
    joints = np.array([*record.joints()], np.int32).reshape(-1, 2)
    waiting, awaited = np.concatenate([waits, joints]).T
    ops = np.arange(len(streams), dtype=np.int32)
    last_kernel = np.maximum.accumulate(np.where(streams == Stream.COMPUTE, ops, -1))
    collectives = ops[streams != Stream.COMPUTE]
    led = collectives[last_kernel[collectives] >= 0]
    rows = rows_of(
        2 * len(ops),
        2 * np.concatenate([ops, waiting, led]) + 1,
        np.concatenate([2 * ops, 2 * np.concatenate([awaited, last_kernel[led]]) + 1]),
    )
    # A collective runs alone if the next op waits for it, or if it is the last op.
    runs_alone = ops == len(ops) - 1
    runs_alone[awaited[waiting == awaited + 1]] = True
    stream_of_task, kind_of = np.zeros((2, 2 * len(ops)), np.int32)
    stream_of_task[1::2], kind_of[1::2] = streams + 1, phases
    graph = TaskGraph(STREAMS, stream_of_task, *rows, _KINDS, kind_of, _names(record))
    return graph, not runs_alone[collectives].all()


def _names(record: PassRecord) -> Callable[[int], str]:
    ops: list[Op] = []

    def name(task: int) -> str:
        if not ops:
            ops.extend(record.ops)
        return ops[task // 2].name if task % 2 else f"launch {ops[task // 2].name}"

    return name
