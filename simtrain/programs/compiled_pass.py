"""Runs a pass with the compiled executor: the same times and sums as SimPy's, to the last bit.

A pass is laid out as arrays from those of its segments, which are made once for each segment.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simtrain.engine.wiring import Floats, Ints, Wiring
from simtrain.programs.pass_kernel import layer_ends, parts_of
from simtrain.programs.pass_layout import PassMachine, PassTime
from simtrain.workload.issue import Segment, Stream, stream_of
from simtrain.workload.ops import Phase
from simtrain.workload.passes import PassRecord
from simtrain.workload.work import Work

_HOST = 0
_STREAMS = {stream: stream.value + 1 for stream in Stream}
_SLOWED_BY = np.zeros((4, 4), np.bool_)
"""Which stream is slowed by which: kernels by collectives, and the other way round."""
for _collectives in (Stream.COMMUNICATION, Stream.DATA):
    _SLOWED_BY[_STREAMS[Stream.COMPUTE], _STREAMS[_collectives]] = True
    _SLOWED_BY[_STREAMS[_collectives], _STREAMS[Stream.COMPUTE]] = True


def run_compiled_pass(record: PassRecord, machine: PassMachine) -> PassTime:
    """Run a pass and say where its time goes."""
    parts = [_arrays(segment) for segment in record.segments]
    streams = np.concatenate([part.streams for part in parts])
    again = np.concatenate([part.again for part in parts])
    # Task 2i launches op i, which is task 2i + 1.
    tasks = np.arange(1, 2 * len(streams), 2, dtype=np.int32)
    duration_s = np.full(2 * len(streams), machine.launch_s)
    duration_s[tasks] = _op_seconds(parts, machine)
    start_s, end_s = _wiring(record, parts, streams, machine.slowdown).run(duration_s)
    compute, exchanges, divisions = (tasks[streams == stream] for stream in Stream)
    kernels = compute, again[streams == Stream.COMPUTE], exchanges, divisions
    compute_s, recompute_s, exposed_s, data_s = parts_of(*kernels, start_s, end_s)
    makespan_s = float(end_s.max())
    ends_s = layer_ends(tasks, np.array(record.layer_ends, np.int32), end_s)
    return PassTime(
        compute_s,
        recompute_s,
        exposed_s,
        data_s,
        max(0.0, makespan_s - compute_s - recompute_s - exposed_s - data_s),
        tuple(ends_s.tolist()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _SegmentArrays:
    """A segment without names.

    Op i does `works[work_of[i]]` on stream `streams[i]`; `again` marks those that are run again.
    Op `waiting[j]` waits for the collective `awaited[j]`.
    """

    works: tuple[Work, ...]
    work_of: Ints
    streams: NDArray[np.int8]
    again: NDArray[np.bool_]
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


def _op_seconds(parts: list[_SegmentArrays], machine: PassMachine) -> Floats:
    """Seconds of each op run alone."""
    of_part: dict[_SegmentArrays, Floats] = {}
    for part in parts:
        if part not in of_part:
            seconds = np.array([machine.seconds(work) for work in part.works])
            of_part[part] = seconds[part.work_of]
    return np.concatenate([of_part[part] for part in parts])


def _wiring(
    record: PassRecord, parts: list[_SegmentArrays], streams: NDArray[np.int8], slowdown: float
) -> Wiring:
    """Who waits for whom: launches, awaited collectives, and the kernel before a collective."""
    num_ops = len(streams)
    ops = np.arange(num_ops, dtype=np.int32)
    starts = record.starts
    joints = np.array(record.joints, np.int32).reshape(-1, 2)
    last_kernel = np.maximum.accumulate(np.where(streams == Stream.COMPUTE, ops, -1))
    collectives = ops[(streams != Stream.COMPUTE) & (last_kernel >= 0)]
    waiting = [part.waiting + start for part, start in zip(parts, starts, strict=True)]
    awaited = [part.awaited + start for part, start in zip(parts, starts, strict=True)]
    waiting_tasks = 2 * np.concatenate([ops, *waiting, joints[:, 0], collectives]) + 1
    awaited_ops = np.concatenate([*awaited, joints[:, 1], last_kernel[collectives]])
    awaited_tasks = np.concatenate([2 * ops, 2 * awaited_ops + 1])
    by_task = np.argsort(waiting_tasks, kind="stable")
    counts = np.bincount(waiting_tasks, minlength=2 * num_ops)
    stream_of_task = np.full(2 * num_ops, _HOST, np.int32)
    stream_of_task[1::2] = streams + 1
    present = np.bincount(stream_of_task, minlength=4) > 0
    slowed_by = _SLOWED_BY & present[:, None] & present[None, :]
    return Wiring.laid_out(
        stream_of_task,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        awaited_tasks[by_task].astype(np.int32),
        np.arange(2 * num_ops) % 2 == 1,
        slowed_by,
        np.where(slowed_by.any(axis=1), slowdown, -1.0),
    )
