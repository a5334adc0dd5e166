"""From the ops of a pass to tasks on streams, and to where the seconds of its simulation go.

Four streams: the host, which launches one kernel after another and runs ahead of the device;
compute; and communication, over data parallelism and over others. A kernel starts when it has been
launched, when its stream is free, and when what it waits for has ended. While a kernel and a
collective run side by side they slow each other down: they share multiprocessors, memory bandwidth
and power.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simtrain.engine import Engine, Interference, Program, Task, simulate
from simtrain.engine.compiled import Flags, Floats, Ints, run_loop
from simtrain.engine.idle import idle_seconds
from simtrain.engine.wiring import Contention, Wiring
from simtrain.programs.pass_time import PassMachine, PassTime
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.ops import Phase
from simtrain.workload.passes import PassRecord
from simtrain.workload.work import Work

STREAMS = HOST, COMPUTE, COMMUNICATION, DATA = "host", "compute", "communication", "data"
"""Streams by number: the host, then those of `Stream`."""

# What `idle_seconds` finds for a pass: collectives that run while no kernel does, first those over
# other groups than data parallelism (part 0), then those over data parallelism (part 1).
_OWN = np.array([STREAMS.index(COMPUTE)], np.int32)
_OTHERS = np.array([[STREAMS.index(COMMUNICATION), STREAMS.index(DATA)]], np.int32)
_PART_OF = np.array([[0, 1]], np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class PassTasks:
    """The tasks of a pass: task 2i launches op i, which is task 2i + 1.

    Args:
        wiring: on the streams of `STREAMS`.
        duration_s: [tasks], seconds of each task alone.
        stream_of: [ops], the `Stream` of each op.
        is_recompute: [ops], whether an op is run again.
    """

    wiring: Wiring
    duration_s: Floats
    stream_of: NDArray[np.int8]
    is_recompute: Flags

    @classmethod
    def of(cls, record: PassRecord, machine: PassMachine) -> PassTasks:
        """Lay out a pass from the arrays of its segments."""
        segments = [_arrays(segment) for segment in record.segments]
        streams = np.concatenate([segment.stream_of for segment in segments])
        duration_s = np.full(2 * len(streams), machine.launch_s)
        duration_s[1::2] = _op_seconds(segments, machine)
        return cls(
            _wiring(record, machine.slowdown),
            duration_s,
            streams,
            np.concatenate([segment.is_recompute for segment in segments]),
        )


def simulate_pass(record: PassRecord, machine: PassMachine, engine: Engine = "simpy") -> PassTime:
    """Run a pass and say where its time goes; both engines find the same to the last bit.

    `auto` is SimPy: a pass is too short to be worth loading compiled code.
    """
    tasks = PassTasks.of(record, machine)
    if engine == "compiled":
        start_s, end_s = tasks.wiring.run(tasks.duration_s)
    else:
        timeline = simulate(_program(record, tasks, machine), "simpy")
        start_s, end_s = np.array(timeline.start_s), np.array(timeline.end_s)
    return _time(record, tasks, start_s, end_s, is_compiled=engine == "compiled")


def _time(
    record: PassRecord, tasks: PassTasks, start_s: Floats, end_s: Floats, *, is_compiled: bool
) -> PassTime:
    """Where the time of a pass goes, whose tasks start and end at these moments."""
    ends_s, makespan_s = end_s[1::2], end_s.max()
    is_kernel = tasks.stream_of == Stream.COMPUTE
    kernel_s = (ends_s - start_s[1::2])[is_kernel]
    compute_s, recompute_s = np.bincount(tasks.is_recompute[is_kernel], kernel_s, 2).tolist()
    queues = tasks.wiring.queues
    idle = _OWN, _OTHERS, _PART_OF, queues.queue_starts, queues.queue, start_s, end_s, makespan_s
    ((exposed_s, data_s),) = run_loop(idle_seconds, *idle, is_compiled=is_compiled).tolist()
    last_ops = np.array(record.layer_ends, np.int32) - 1
    return PassTime(
        compute_s,
        recompute_s,
        exposed_s,
        data_s,
        max(0.0, float(makespan_s) - compute_s - recompute_s - exposed_s - data_s),
        tuple(np.maximum.accumulate(ends_s)[last_ops].tolist()),
    )


def pass_program(record: PassRecord, machine: PassMachine) -> tuple[Program, tuple[int, ...]]:
    """The program of a pass, and the task of each op in issue order."""
    program = _program(record, PassTasks.of(record, machine), machine)
    return program, tuple(range(1, len(program.tasks), 2))


def _program(record: PassRecord, layout: PassTasks, machine: PassMachine) -> Program:
    starts, after = layout.wiring.queues.after_starts.tolist(), layout.wiring.queues.after.tolist()
    tasks: list[Task] = []
    for op, stream, duration_s in zip(
        record.ops, layout.stream_of.tolist(), layout.duration_s[1::2].tolist(), strict=True
    ):
        tasks.append(Task(f"launch {op.name}", HOST, machine.launch_s, kind="launch"))
        waits = after[starts[len(tasks)] : starts[len(tasks) + 1]]
        tasks.append(
            Task(op.name, STREAMS[stream + 1], duration_s, tuple(waits), op.phase, contends=True)
        )
    return Program(tuple(tasks), _interference(machine.slowdown))


@dataclass(frozen=True, slots=True, eq=False)
class _SegmentArrays:
    """A segment without names.

    Op i does `works[work_of[i]]` on stream `stream_of[i]`; `is_recompute` marks ops that are run
    again. Op `waiting[j]` waits for the collective `awaited[j]`.
    """

    works: tuple[Work, ...]
    work_of: Ints
    stream_of: NDArray[np.int8]
    is_recompute: Flags
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
        np.array([op.phase is Phase.RECOMPUTE for op in segment.ops], np.bool_),
        np.array([waiting for waiting, _ in pairs], np.int32),
        np.array([awaited for _, awaited in pairs], np.int32),
    )


def _op_seconds(segments: Sequence[_SegmentArrays], machine: PassMachine) -> Floats:
    """Seconds of each op run alone."""
    found: dict[_SegmentArrays, Floats] = {}
    for segment in segments:
        if segment not in found:
            seconds = np.array([machine.seconds(work) for work in segment.works])
            found[segment] = seconds[segment.work_of]
    return np.concatenate([found[segment] for segment in segments])


@functools.lru_cache(maxsize=1024)
def _wiring(record: PassRecord, slowdown: float) -> Wiring:
    """An op waits for its launch and awaited collectives, a collective for the kernel before it."""
    segments = [_arrays(segment) for segment in record.segments]
    streams = np.concatenate([segment.stream_of for segment in segments])
    num_ops = len(streams)
    ops = np.arange(num_ops, dtype=np.int32)
    joints = np.array(record.joints, np.int32).reshape(-1, 2)
    last_kernel = np.maximum.accumulate(np.where(streams == Stream.COMPUTE, ops, -1))
    collectives = ops[(streams != Stream.COMPUTE) & (last_kernel >= 0)]
    placed = [*zip(segments, record.starts, strict=True)]
    waiting = [segment.waiting + start for segment, start in placed]
    awaited = [segment.awaited + start for segment, start in placed]
    waiting_tasks = 2 * np.concatenate([ops, *waiting, joints[:, 0], collectives]) + 1
    awaited_ops = np.concatenate([*awaited, joints[:, 1], last_kernel[collectives]])
    awaited_tasks = np.concatenate([2 * ops, 2 * awaited_ops + 1])
    by_task = np.argsort(waiting_tasks, kind="stable")
    counts = np.bincount(waiting_tasks, minlength=2 * num_ops)
    stream_of_task = np.zeros(2 * num_ops, np.int32)
    stream_of_task[1::2] = streams + 1
    is_present = np.bincount(stream_of_task, minlength=len(STREAMS)).tolist()
    present = {stream: number for number, stream in enumerate(STREAMS) if is_present[number]}
    return Wiring.of(
        len(STREAMS),
        stream_of_task,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        awaited_tasks[by_task].astype(np.int32),
        Contention.of(stream_of_task > 0, _interference(slowdown), present),
    )


def _interference(slowdown: float) -> dict[str, Interference]:
    return {
        COMPUTE: Interference((COMMUNICATION, DATA), slowdown),
        COMMUNICATION: Interference((COMPUTE,), slowdown),
        DATA: Interference((COMPUTE,), slowdown),
    }
