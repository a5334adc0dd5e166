"""From the ops of a pass to tasks on streams, and to where the seconds of its simulation go.

Five streams: the host, which launches one kernel after another and runs ahead of the device;
compute; and communication, over data parallelism, between equal shards, and over others. A kernel
starts when it has been launched, when its stream is free, and when what it waits for has ended.
Kernels and collectives that run side by side share the device: its multiprocessors, memory
bandwidth and power.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import (
    Engine,
    Program,
    Shares,
    TaskGraph,
    Timeline,
    runs_loops_compiled,
    simulate,
)
from simtrain.engine.compiled import Flags, Floats, Ints, run_loop
from simtrain.engine.idle import idle_seconds
from simtrain.engine.program import rows_of
from simtrain.programs.pass_time import PassMachine, PassTime
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.ops import Op, Phase
from simtrain.workload.passes import PassRecord
from simtrain.workload.work import Work

STREAMS = HOST, COMPUTE, COMMUNICATION, DATA, SHARDS = (
    *("host", "compute", "communication"),
    *("data", "equal shards"),
)
"""Streams by number: the host, then those of `Stream`."""

_KINDS = ("launch", *Phase)

# What `idle_seconds` finds for a pass: collectives that run while no kernel does, first those over
# other groups than data parallelism (part 0), then those over data parallelism (part 1).
_OWN = np.array([STREAMS.index(COMPUTE)], np.int32)
_OTHERS = np.array([[STREAMS.index(one) for one in (COMMUNICATION, DATA, SHARDS)]], np.int32)
_PART_OF = np.array([[0, 1, 1]], np.int32)


def simulate_pass(record: PassRecord, machine: PassMachine, engine: Engine = "auto") -> PassTime:
    """Run a pass and say where its time goes; all engines find the same to the last bit."""
    return _time(record, simulate(pass_program(record, machine), engine), engine)


def pass_program(record: PassRecord, machine: PassMachine) -> Program:
    """The program of a pass: task 2i launches op i, which is task 2i + 1."""
    layout, segments = _layout(record), [_arrays(segment) for segment in record.segments]
    num_ops = len(layout.is_recompute)
    duration_s = np.full(2 * num_ops, machine.launch_s)
    duration_s[1::2] = _of_ops(segments, machine.seconds)
    if not layout.runs_side_by_side:
        return Program(layout.graph, duration_s)
    load = _of_ops(segments, machine.load)
    # Launches take nothing of the device, nor do copy engines.
    num_loads = np.concatenate([[0], np.cumsum(load > 0)]).astype(np.int32)
    starts, load = num_loads[np.arange(2 * num_ops + 1) // 2], load[load > 0]
    device, weight = np.zeros(len(load), np.int32), np.ones(2 * num_ops)
    return Program(layout.graph, duration_s, Shares(np.ones(1), starts, device, load, weight))


def _time(record: PassRecord, timeline: Timeline, engine: Engine) -> PassTime:
    """Where the time of a pass goes."""
    layout, start_s, end_s = _layout(record), timeline.start_s, timeline.end_s
    graph, ends_s, makespan_s = layout.graph, end_s[1::2], timeline.makespan_s
    is_kernel = graph.stream_of[1::2] == STREAMS.index(COMPUTE)
    kernel_s = (ends_s - start_s[1::2])[is_kernel]
    compute_s, recompute_s = np.bincount(layout.is_recompute[is_kernel], kernel_s, 2).tolist()
    tasks = graph.queue_starts, graph.queue, start_s, end_s, np.float64(makespan_s)
    is_compiled = runs_loops_compiled(engine, graph)
    idle_s = run_loop(idle_seconds, (_OWN, _OTHERS, _PART_OF, *tasks), is_compiled=is_compiled)
    exposed_s, data_s = idle_s[0].tolist()
    last_ops = np.array(record.starts)[[*record.layer_ends]] - 1
    return PassTime(
        compute_s,
        recompute_s,
        exposed_s,
        data_s,
        max(0.0, makespan_s - compute_s - recompute_s - exposed_s - data_s),
        tuple(np.maximum.accumulate(ends_s)[last_ops].tolist()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _SegmentArrays:
    """A segment without names.

    Op i does `works[work_of[i]]` on stream `stream_of[i]`, in phase `phase_of[i]`. Op `waiting[j]`
    waits for the collective `awaited[j]`.
    """

    works: tuple[Work, ...]
    work_of: Ints
    stream_of: NDArray[np.int8]
    phase_of: NDArray[np.int8]
    waiting: Ints
    awaited: Ints


@functools.lru_cache(maxsize=4096)
def _arrays(segment: Segment) -> _SegmentArrays:
    numbers: dict[Work, int] = {}
    work_of = [numbers.setdefault(op.work, len(numbers)) for op in segment.ops]
    pairs = [(i, other) for i, waits in enumerate(segment.waits) for other in waits]
    return _SegmentArrays(
        tuple(numbers),
        np.array(work_of, np.int32),
        np.array([stream_of(op) for op in segment.ops], np.int8),
        np.array([_KINDS.index(op.phase) for op in segment.ops], np.int8),
        np.array([waiting for waiting, _ in pairs], np.int32),
        np.array([awaited for _, awaited in pairs], np.int32),
    )


def _of_ops(segments: Sequence[_SegmentArrays], value: Callable[[Work], float]) -> Floats:
    """A value of each op's work."""
    found: dict[_SegmentArrays, Floats] = {}
    for segment in segments:
        if segment not in found:
            found[segment] = np.array([value(work) for work in segment.works])[segment.work_of]
    return np.concatenate([found[segment] for segment in segments])


@dataclass(frozen=True, slots=True, eq=False)
class _PassLayout:
    """The tasks of a pass, whatever they last.

    `is_recompute` is about ops; `runs_side_by_side` says whether a kernel or a collective can run
    while another collective does.
    """

    graph: TaskGraph
    is_recompute: Flags
    runs_side_by_side: bool


@functools.lru_cache(maxsize=1024)
def _layout(record: PassRecord) -> _PassLayout:
    """An op waits for its launch and awaited collectives, a collective for the kernel before it."""
    segments = [_arrays(segment) for segment in record.segments]
    streams, phases = (
        np.concatenate([getattr(segment, name) for segment in segments])
        for name in ("stream_of", "phase_of")
    )
    ops = np.arange(len(streams), dtype=np.int32)
    joints = np.array([*record.joints()], np.int32).reshape(-1, 2)
    starts = np.repeat(record.starts[:-1], [len(segment.waiting) for segment in segments])
    waiting = np.concatenate([segment.waiting for segment in segments]) + starts
    awaited = np.concatenate([segment.awaited for segment in segments]) + starts
    waiting = np.concatenate([waiting, joints[:, 0]])
    awaited = np.concatenate([awaited, joints[:, 1]])
    last_kernel = np.maximum.accumulate(np.where(streams == Stream.COMPUTE, ops, -1))
    collectives = ops[streams != Stream.COMPUTE]
    led = collectives[last_kernel[collectives] >= 0]
    rows = rows_of(
        2 * len(ops),
        2 * np.concatenate([ops, waiting, led]) + 1,
        np.concatenate([2 * ops, 2 * np.concatenate([awaited, last_kernel[led]]) + 1]),
    )
    # A collective runs alone if the next op waits for it, or there is none.
    runs_alone = ops == len(ops) - 1
    runs_alone[awaited[waiting == awaited + 1]] = True
    stream_of_task, kind_of = np.zeros((2, 2 * len(ops)), np.int32)
    stream_of_task[1::2], kind_of[1::2] = streams + 1, phases
    graph = TaskGraph(STREAMS, stream_of_task, *rows, _KINDS, kind_of, _names(record))
    is_recompute = phases == _KINDS.index(Phase.RECOMPUTE)
    return _PassLayout(graph, is_recompute, not runs_alone[collectives].all())


def _names(record: PassRecord) -> Callable[[int], str]:
    ops: list[Op] = []

    def name(task: int) -> str:
        if not ops:
            ops.extend(record.ops)
        return ops[task // 2].name if task % 2 else f"launch {ops[task // 2].name}"

    return name
