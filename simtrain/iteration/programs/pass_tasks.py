"""Makes the ops of a pass tasks on streams, simulates them, and breaks down the time.

The host has a stream, on which it launches kernels and runs ahead of the GPU, until it has to
read a result, such as the counts of tokens for experts. The GPU has one for compute, and three for
data-parallel collectives, collectives between equal shards, and other collectives. A kernel starts
when it is launched, its stream is free, and the tasks that it waits for have ended.
Concurrent kernels and collectives share the GPU: its multiprocessors, memory bandwidth and power.
Merged passes share all streams.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from simtrain.base.values import dataclass, field, replace
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
from simtrain.workload.issue import LaunchKind, Segment, Stream, stream_of
from simtrain.workload.ops import Phase
from simtrain.workload.pass_record import PassRecord
from simtrain.workload.passes import MergedRecord, RankRecord
from simtrain.workload.work import Collective, Work

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentCache(Generic[Key, Value]):
    """A cache that looks each key up once, because keys may be slow to hash.

    Args:
        limit: total size of all values; above it, the oldest values are dropped.
        size: returns the size of a value; 1 by default.
    """

    def __init__(self, limit: int, size: Callable[[Value], int] = lambda value: 1) -> None:
        self._limit, self._size, self._total = limit, size, 0
        self._values: dict[Key, Value] = {}

    def get(self, key: Key, make: Callable[[Key], Value]) -> Value:
        try:
            value = self._values[key]
        except KeyError:
            value = self._values[key] = make(key)
            self._total += self._size(value)
            while self._total > self._limit:
                self._total -= self._size(self._values.pop(next(iter(self._values))))
        return value


HOST, COMPUTE, COMMUNICATION = "host", "compute", "communication"
DATA, SHARDS = "data", "equal shards"
STREAMS = HOST, COMPUTE, COMMUNICATION, DATA, SHARDS
"""Streams by number: the host, then those of `Stream`."""

_KINDS = ("launch", *Phase)
_CACHED = 4096
"""Number of segments whose seconds and loads a machine caches."""

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
        exposed_s = self.exposed_communication_s, self.exposed_data_s
        return math.fsum((self.compute_s, self.recompute_s, *exposed_s, self.launch_s))


@dataclass(frozen=True, slots=True)
class PassMachine:
    """The properties of a machine that determine the time of a pass.

    Args:
        seconds: returns the time of an op's work that runs alone.
        launch_s: time in which the host launches a kernel.
        load: returns the fraction of the GPU that an op's work uses at full speed. Only that of a
            collective depends on sizes.
        call_s: time of the host for a call of the framework, in addition to its launches.
        runs_ahead: the host does not wait for the GPU between passes.
        blocks: the host waits for each kernel and each collective that it launches.
        slice_s: time in which the host copies a slice of a list.
    """

    seconds: Callable[[Work], float]
    launch_s: float
    load: Callable[[Work], float]
    call_s: float = 0.0
    runs_ahead: bool = False
    blocks: bool = False
    slice_s: float = 0.0
    _of_segments: RecentCache[Segment, Floats] = field(
        default_factory=partial(RecentCache, _CACHED), repr=False, compare=False
    )
    _of_patterns: RecentCache[object, Any] = field(
        default_factory=partial(RecentCache, _CACHED), repr=False, compare=False
    )

    def of_segment(self, segment: Segment) -> Floats:
        """Return [4, ops] of a segment, which passes share.

        Seconds and load of each op, and the host's seconds to launch it and for its call.
        """
        return self._of_segments.get(segment, self._compute_segment)

    def host_s(self, segment: Segment) -> float:
        num_calls = segment.launches.count(LaunchKind.CALL)
        launched = zip(segment.ops, segment.launches, strict=True)
        num_kernels = sum(op.num_kernels for op, how in launched if how is not LaunchKind.REPLAYED)
        slices_s = sum(op.num_slices for op in segment.ops) * self.slice_s
        return num_kernels * self.launch_s + num_calls * self.call_s + slices_s

    def _compute_segment(self, segment: Segment) -> Floats:
        works = [op.work for op in segment.ops]
        rows, places = self._of_patterns.get(segment.pattern, lambda _: self._rows(segment))
        values = np.array([[*map(self.seconds, works)], *rows])
        for place in places:
            values[1, place] = self.load(works[place])
        return values

    def _rows(self, segment: Segment) -> tuple[list[list[float]], list[int]]:
        """Return [3, ops], loads and the host's seconds, and the places of collectives."""
        works, kinds, slice_s = [op.work for op in segment.ops], segment.launches, self.slice_s
        launch_s = [
            self.launch_s * op.num_kernels * (kind < LaunchKind.REPLAYED) + slice_s * op.num_slices
            for op, kind in zip(segment.ops, kinds, strict=True)
        ]
        call_s = [self.call_s * (kind is LaunchKind.CALL) for kind in kinds]
        places = [place for place, work in enumerate(works) if isinstance(work, Collective)]
        return [[*map(self.load, works)], launch_s, call_s], places


def simulate_pass(record: RankRecord, machine: PassMachine, engine: Engine = "auto") -> PassTime:
    """Simulate a pass and break down its time; all engines agree to the last bit."""
    timeline = run_pass(record, machine, engine)
    graph, ends_s, makespan_s = timeline.program.graph, timeline.end_s[1::2], timeline.makespan_s
    kernels, is_recompute = _kernels(graph)
    kernel_s = (ends_s - timeline.start_s[1::2])[kernels]
    compute_s, recompute_s = np.bincount(is_recompute, kernel_s, 2).tolist()
    idle_s = find_idle_seconds(timeline, _OWN, _OTHERS, _PART_OF, engine)[0]
    exposed_s, data_s = idle_s.tolist()
    # Merged passes are not cut into spans, which end with layers.
    last_ops: list[int] = []
    if isinstance(record, PassRecord):
        last_ops = [record.starts[end] - 1 for end in record.layer_ends]
    return PassTime(
        compute_s,
        recompute_s,
        exposed_s,
        data_s,
        max(0.0, makespan_s - compute_s - recompute_s - exposed_s - data_s),
        tuple(np.maximum.accumulate(ends_s)[last_ops].tolist()),
    )


def run_pass(record: RankRecord, machine: PassMachine, engine: Engine = "auto") -> Timeline:
    """Simulate a pass: when each op is launched (task 2i) and runs (task 2i + 1).

    A host that does not wait for the GPU makes the calls of later passes while the GPU runs. So a
    pass takes as long as the host or the GPU needs for it, whichever is longer. What the host needs
    in addition passes before the first op.
    """
    runs_ahead, waits = machine.call_s and machine.runs_ahead, getattr(record, "synchronized", ())
    if not runs_ahead or waits or any(True for x in record.segments for _ in _host_waits(x)):
        return simulate(pass_program(record, machine), engine)
    ahead = pass_program(record, machine, has_calls=False)
    timeline = simulate(ahead, engine)
    host_s = {segment: machine.host_s(segment) for segment in {*record.segments}}
    lacks_s = sum(host_s[segment] for segment in record.segments) - timeline.makespan_s
    if lacks_s <= 0:
        return timeline
    ahead.duration_s[0] += lacks_s
    return simulate(ahead, engine)


def seconds_of_ops(timeline: Timeline) -> tuple[list[float], list[float]]:
    """Return [ops], the time of each op and its exposed time, from the timeline of a pass.

    Kernels are always exposed; a collective is exposed while no kernel runs. When collectives on
    several streams are exposed at the same time, the time is charged as in `PassTime`. So exposed
    times add up to the duration of the pass, except for times in which nothing runs (launches).
    """
    exposed_s = exposed_seconds(timeline, range(STREAMS.index(COMPUTE), len(STREAMS)))
    return (timeline.end_s - timeline.start_s)[1::2].tolist(), exposed_s[1::2].tolist()


def pass_program(record: RankRecord, machine: PassMachine, *, has_calls: bool = True) -> Program:
    """Return the program of a pass: task 2i launches op i, which is task 2i + 1.

    Without `has_calls`, launches do not include the calls of the framework.
    """
    graph, runs_side_by_side = _graph(_Pattern(_key_of(record), record), machine.blocks)
    seconds, loads, launch_s, call_s = _of_ops(record, machine)
    duration_s = np.empty(graph.num_tasks)
    duration_s[::2] = launch_s + call_s if has_calls else launch_s
    duration_s[1::2] = seconds
    if not runs_side_by_side:
        return Program(graph, duration_s)
    # Launches put no load on the GPU.
    has_load = np.zeros(len(duration_s), np.bool_)
    has_load[1::2] = loads > 0
    loaded = loads[loads > 0]
    device, weight = np.zeros(len(loaded), np.int32), np.ones(len(duration_s))
    link_loads = LinkLoads(np.ones(1), starts_of(has_load), device, loaded, weight)
    return Program(graph, duration_s, link_loads)


def _of_ops(record: RankRecord, machine: PassMachine) -> Floats:
    """Return [4, ops], as `PassMachine.of_segment`."""
    values = np.concatenate([*map(machine.of_segment, record.segments)], axis=1)
    # The segments of merged passes are those of one pass after the other.
    return values[:, [*record.order]] if isinstance(record, MergedRecord) else values


@functools.lru_cache(maxsize=4096)
def _arrays(segment: Segment) -> tuple[Ints, Ints, Ints, Ints]:
    """Return stream and phase of each op, and what ops and launches wait for.

    The third array has pairs of an op and a collective that it waits for; the fourth, pairs of an
    op whose launch waits and the op that the host waits for.
    """
    waits = [(i, other) for i, others in enumerate(segment.waits) for other in others]
    return (
        np.array([stream_of(op) for op in segment.ops], np.int8),
        np.array([_KINDS.index(op.phase) for op in segment.ops], np.int8),
        np.array(waits, np.int32).reshape(-1, 2),
        np.array([*_host_waits(segment)], np.int32).reshape(-1, 2),
    )


def _synchronizations(record: PassRecord, streams: Ints) -> Iterator[Ints]:
    """Yield [waits, 2], ops before which the host waits, and the last one before on a stream."""
    ops = np.arange(len(streams), dtype=np.int32)
    firsts = np.array([record.starts[number] for number in record.synchronized], np.int32)
    for stream in Stream:
        last = np.maximum.accumulate(np.where(streams == stream, ops, -1))[firsts - 1]
        yield np.stack([firsts, last], axis=1)[(firsts > 0) & (last >= 0)]


def _host_waits(segment: Segment) -> Iterator[tuple[int, int]]:
    """Yield ops that need the host, and the op whose result it reads before it launches them."""
    informing: int | None = None
    for place, op in enumerate(segment.ops):
        if op.needs_host and informing is not None:
            yield place, informing
        if op.informs_host:
            informing = place


@dataclass(frozen=True, slots=True, eq=False)
class _Issued:
    """The ops of a rank in the order of issue.

    Args:
        streams, phases: [ops], the stream of each op, and the place of its phase in `_KINDS`.
        waiting, awaited: op `waiting[i]` waits for the collective `awaited[i]`.
        host_waits: [waits, 2], ops whose launch waits, each with the op that the host waits for.
        pass_of: [ops], 1 for ops of the backward pass that a forward pass is merged with, else 0.
        unled: [ops], ops that do not wait for the kernel issued before them.
    """

    streams: Ints
    phases: Ints
    waiting: Ints
    awaited: Ints
    host_waits: Ints
    pass_of: Ints
    unled: NDArray[np.bool_]

    @classmethod
    def of_pass(cls, record: PassRecord) -> _Issued:
        of_segments = zip(*map(_arrays, record.segments), strict=True)
        streams, phases, waits, host_waits = map(np.concatenate, of_segments)
        for pairs, column in ((waits, 2), (host_waits, 3)):
            num_waits = [len(_arrays(segment)[column]) for segment in record.segments]
            pairs += np.repeat(np.array(record.starts[:-1], np.int32), num_waits)[:, np.newaxis]
        host_waits = np.concatenate([host_waits, *_synchronizations(record, streams)])
        joints = np.array([*record.joints()], np.int32).reshape(-1, 2)
        waiting, awaited = np.concatenate([waits, joints]).T
        of_one_pass, unled = np.zeros(len(streams), np.int8), np.zeros(len(streams), np.bool_)
        unled[[*record.unled]] = True
        return cls(streams, phases, waiting, awaited, host_waits, of_one_pass, unled)

    @classmethod
    def of_merged(cls, record: MergedRecord) -> _Issued:
        """Return the ops of merged passes, each of which waits for collectives of its own pass.

        A kernel that is issued after a later kernel of its pass passes its waits on to that kernel.
        """
        forward, backward = map(cls.of_pass, record.records)
        order = np.array(record.order, np.int32)
        number = np.empty_like(order)
        number[order] = np.arange(len(order), dtype=np.int32)
        start = len(forward.streams)
        waits = [
            (number[offset + of.waiting], number[offset + of.awaited])
            for offset, of in ((0, forward), (start, backward))
        ]
        # The first op of the backward pass from each one on, in the order of issue.
        earliest = np.minimum.accumulate(number[start:][::-1])[::-1]
        overtaken = earliest[backward.waiting] < waits[1][0]
        waits.append((earliest[backward.waiting][overtaken], waits[1][1][overtaken]))
        waiting, awaited = map(np.concatenate, zip(*waits, strict=True))
        streams, phases = (
            np.concatenate(columns)[order]
            for columns in ((forward.streams, backward.streams), (forward.phases, backward.phases))
        )
        host_waits = number[np.concatenate([forward.host_waits, start + backward.host_waits])]
        pass_of = (order >= start).astype(np.int8)
        unled = np.concatenate([forward.unled, backward.unled])[order]
        return cls(streams, phases, waiting, awaited, host_waits, pass_of, unled)

    def previous_kernels(self) -> Ints:
        """Return [ops], the last kernel of the same pass issued before each op; -1 for none."""
        ops = np.arange(len(self.streams), dtype=np.int32)
        is_kernel = self.streams == Stream.COMPUTE
        last: Ints = np.empty_like(ops)
        for number in {*self.pass_of.tolist()}:
            of_pass = self.pass_of == number
            last[of_pass] = np.maximum.accumulate(np.where(is_kernel & of_pass, ops, -1))[of_pass]
        return last

    def has_concurrent_ops(self) -> bool:
        """Return whether a collective can overlap another op."""
        collectives = np.flatnonzero(self.streams != Stream.COMPUTE)
        if self.pass_of.any():
            return bool(len(collectives))
        # A collective runs alone if the next op waits for it, or if it is the last op.
        runs_alone = np.zeros(len(self.streams), np.bool_)
        runs_alone[-1:] = True
        runs_alone[self.awaited[self.waiting == self.awaited + 1]] = True
        return not runs_alone[collectives].all()


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A record without the sizes of its ops: only its graph depends on it."""

    key: Hashable
    of: RankRecord = field(compare=False)


def _key_of(record: RankRecord) -> Hashable:
    if isinstance(record, MergedRecord):
        return (*map(_key_of, record.records), record.order)
    patterns = tuple([segment.pattern for segment in record.segments])
    # Pairs of ops follow from pairs of segments, unless the record is of another class.
    is_plain = type(record) is PassRecord
    waits = (record.waits, record.follows) if is_plain else tuple(record.joints())
    return patterns, waits, record.synchronized, tuple(record.unled)


@functools.lru_cache(maxsize=1024)
def _kernels(graph: TaskGraph) -> tuple[Ints, Ints]:
    """Return the ops that are kernels, and for each of them 1 if it recomputes, else 0."""
    kernels = np.flatnonzero(graph.stream_of[1::2] == STREAMS.index(COMPUTE))
    is_recompute = graph.kind_of[1::2][kernels] == _KINDS.index(Phase.RECOMPUTE)
    return kernels, is_recompute.astype(np.intp)


@functools.lru_cache(maxsize=1024)
def _graph(pattern: _Pattern, blocks: bool) -> tuple[TaskGraph, bool]:
    """Return the tasks of a pass, and whether a collective can overlap another op.

    An op waits for its launch and awaited collectives. A collective waits for the previous kernel
    of its pass, unless its record says that it does not. A launch waits for an op whose result the
    host needs; its run-ahead ends there. If launches block, it waits for the op before.
    """
    of, names = pattern.of, [op.name for op in pattern.of.ops]
    issued = _Issued.of_merged(of) if isinstance(of, MergedRecord) else _Issued.of_pass(of)
    ops = np.arange(len(issued.streams), dtype=np.int32)
    if blocks:
        issued = replace(issued, host_waits=np.stack([ops[1:], ops[:-1]], axis=1))
    last_kernel, collectives = issued.previous_kernels(), ops[issued.streams != Stream.COMPUTE]
    led = collectives[(last_kernel[collectives] >= 0) & ~issued.unled[collectives]]
    rows = rows_of(
        2 * len(ops),
        np.concatenate(
            [2 * np.concatenate([ops, issued.waiting, led]) + 1, 2 * issued.host_waits[:, 0]]
        ),
        np.concatenate(
            [
                2 * ops,
                2 * np.concatenate([issued.awaited, last_kernel[led], issued.host_waits[:, 1]]) + 1,
            ]
        ),
    )

    def name(task: int) -> str:
        return names[task // 2] if task % 2 else f"launch {names[task // 2]}"

    stream_of_task, kind_of = np.zeros((2, 2 * len(ops)), np.int32)
    stream_of_task[1::2], kind_of[1::2] = issued.streams + 1, issued.phases
    graph = TaskGraph(STREAMS, stream_of_task, *rows, _KINDS, kind_of, name)
    return graph, not blocks and issued.has_concurrent_ops()
