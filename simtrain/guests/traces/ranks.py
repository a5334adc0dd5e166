"""The kernels of each rank in a trace, with their kinds, launches, groups and iterations."""

from __future__ import annotations

import bisect
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from simtrain.base.values import dataclass
from simtrain.guests.traces.events import (
    Event,
    arguments_of,
    begin_us,
    duration_s,
    no_trace,
    read_events,
    whole_number,
)
from simtrain.guests.traces.kinds import (
    OPTIMIZER_STEP,
    TRANSFER,
    KernelKind,
    Role,
    kind_of_kernel,
    kind_of_op,
)

LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver")
_MOST_NESTED = 64
"""Ops before a launch among which the one that encloses it is sought."""
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CATEGORIES = {*_ON_DEVICE, *LAUNCH_CATEGORIES, "cpu_op", "user_annotation", "metadata"}
Basis = Literal["steps of the profiler", "the whole trace"]
_STEP = re.compile(r"ProfilerStep#\d+")
_RANK = re.compile(r"rank (\d{1,9})\b")


class TracedKernel(NamedTuple):
    """A kernel.

    Args:
        name: its name.
        kind: what it does.
        group: ranks of its group; 0 if the trace does not say it.
        stream: the stream.
        start_us, end_us: moments, counted from the first event of the file.
        launched_us: when the host had launched it; NaN if the trace does not say it.
        op: number of the op that launched it, if that op is of the same kind; -1 for another.
        meets: the group of ranks that take part in it, or its sender and receiver; "" if the trace
            does not say it.
    """

    name: str
    kind: KernelKind
    group: int
    stream: str
    start_us: float
    end_us: float
    launched_us: float
    op: int
    meets: str = ""


class ProfiledStep(NamedTuple):
    """A step as the profiler's schedule marks it on the host."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The kernels of a rank.

    Args:
        rank, world_size: its number and that of all ranks; None if the trace does not say it.
        kernels: in order of start.
        steps: marked steps, in order of time.
    """

    file: Path
    rank: int | None
    world_size: int | None
    kernels: tuple[TracedKernel, ...]
    steps: tuple[ProfiledStep, ...]


@dataclass(frozen=True, slots=True)
class TracedIteration:
    """An iteration in a trace.

    Args:
        name: the profiler's name of the step, or its number.
        start_us, end_us: moments in the trace.
        kernels: places of its kernels in the trace.
    """

    name: str
    start_us: float
    end_us: float
    kernels: Sequence[int]

    @property
    def seconds(self) -> float:
        return (self.end_us - self.start_us) * 1e-6


class Enclosing:
    """Finds the innermost event that encloses a moment on a thread."""

    def __init__(self, events: Sequence[Event]) -> None:
        by_thread: dict[str, list[tuple[float, float, Event]]] = defaultdict(list)
        for event in events:
            begin = begin_us(event)
            if begin is not None and (seconds := duration_s(event)):
                by_thread[_thread(event)].append((begin, begin + seconds * 1e6, event))
        self._spans = by_thread
        self._begins: dict[str, list[float]] = {}
        for thread, spans in by_thread.items():
            spans.sort(key=lambda span: (span[0], -span[1]))
            self._begins[thread] = [begin for begin, _, _ in spans]

    def of(self, event: Event) -> Event | None:
        """Return the innermost event around the begin of another on its thread."""
        thread, time = _thread(event), begin_us(event)
        if thread not in self._spans or time is None:
            return None
        # Of nested ops the last to begin is the innermost; few siblings end in between.
        last = bisect.bisect_right(self._begins[thread], time)
        before = reversed(self._spans[thread][max(0, last - _MOST_NESTED) : last])
        return next((enclosing for _, end, enclosing in before if end >= time), None)


def launches_by_correlation(events: Sequence[Event]) -> dict[int | None, Event]:
    """Return the launches, which have the `correlation` of their kernels."""
    return {
        whole_number(event, "correlation"): event
        for event in events
        if event.get("cat") in LAUNCH_CATEGORIES
    }


def launching_ops(events: Sequence[Event]) -> Callable[[Event], Event | None]:
    """Return a function from a kernel to the innermost op that launched it.

    Newer traces number both alike (`External id`). In older ones the op encloses the launch, which
    has the kernel's `correlation`, on its thread.
    """
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    by_number = {whole_number(op, "External id"): op for op in ops}
    launches, enclosing = launches_by_correlation(events), Enclosing(ops)

    def op_of(kernel: Event) -> Event | None:
        number = whole_number(kernel, "External id")
        correlation = whole_number(kernel, "correlation")
        if number is not None and number != correlation and number in by_number:
            return by_number[number]
        launch = launches.get(correlation) if correlation is not None else None
        op = enclosing.of(launch) if launch else None
        return op or (by_number.get(number) if number is not None else None)

    return op_of


def read_rank_traces(path: Path) -> list[RankTrace]:
    """Read the ranks of a trace: one, or as many as it has processes with names such as "rank 3".

    Raises:
        InputError: E726, it is no trace, or has no kernels.
    """
    trace = read_events(path, _CATEGORIES)
    timed = [event for event in trace.events if begin_us(event) is not None and duration_s(event)]
    of_device = [event for event in timed if event.get("cat") in _ON_DEVICE]
    zero_us = min((float(event["ts"]) for event in timed), default=0.0)
    if not any(event.get("cat") == "kernel" for event in of_device):
        raise no_trace(path, "it has no kernels of a device with times")
    kernels = _kernels(of_device, timed, zero_us)
    steps = _steps(timed, zero_us)
    world: Any = trace.header.get("distributedInfo")
    world = world if isinstance(world, dict) else {}
    rank, size = (_count(world.get(key)) for key in ("rank", "world_size"))
    names = _rank_names(trace.events)
    named: list[tuple[int | None, list[str]]] = [
        (names[process], [process]) for process in sorted(kernels.keys() & names.keys())
    ]
    ranks = []
    # Without names, the processes are the devices of one rank.
    for number, processes in named or [(rank, [*kernels])]:
        of_rank = [kernel for process in processes for kernel in kernels[process]]
        of_rank.sort(key=attrgetter("start_us", "end_us"))
        marked = steps.get(processes[0] if named else "", [])
        marked.sort(key=attrgetter("start_us"))
        ranks.append(RankTrace(path, number, size, tuple(of_rank), tuple(marked)))
    return ranks


def iterations_of(trace: RankTrace) -> tuple[Basis, list[TracedIteration]]:
    """Return the iterations of a trace, at least one, and how they were told apart.

    A kernel belongs to the step of the profiler that launched it. The device is behind the host, so
    an iteration begins when the kernels before it have ended, but not before its step.
    """
    kernels = trace.kernels
    moments = [
        kernel.start_us if math.isnan(kernel.launched_us) else kernel.launched_us
        for kernel in kernels
    ]
    edges = [step.start_us for step in trace.steps] + [step.end_us for step in trace.steps[-1:]]
    step_of = np.searchsorted(edges, moments, side="right") - 1
    iterations: list[TracedIteration] = []
    ended_us = -math.inf
    for number, step in enumerate(trace.steps):
        places = np.flatnonzero(step_of == number).tolist()
        if places:
            start_us = max(step.start_us, ended_us)
            ended_us = max(step.end_us, *(kernels[place].end_us for place in places))
            iterations.append(TracedIteration(step.name, start_us, ended_us, places))
    if iterations:
        return "steps of the profiler", iterations
    end_us = max(kernel.end_us for kernel in kernels)
    every = range(len(kernels))
    return "the whole trace", [TracedIteration("whole trace", kernels[0].start_us, end_us, every)]


def median_iteration(iterations: Sequence[TracedIteration]) -> TracedIteration:
    """Return the iteration with the median time; of two, the faster."""
    order = sorted(iterations, key=lambda iteration: iteration.seconds)
    return order[(len(order) - 1) // 2]


def _kernels(
    of_device: Sequence[Event], events: Sequence[Event], zero_us: float
) -> dict[str, list[TracedKernel]]:
    op_of, launches = launching_ops(events), launches_by_correlation(events)
    annotations = _annotations(events)
    numbers: dict[int, int] = {}
    kernels: dict[str, list[TracedKernel]] = defaultdict(list)
    for event in of_device:
        op, correlation = op_of(event), whole_number(event, "correlation")
        launch = launches.get(correlation) if correlation is not None else None
        step = annotations.of(launch) if launch else None
        name, op_name = _name(event), _name(op or {})
        collective = arguments_of(event).get("Collective name")
        kind = kind_of_kernel(name, str(collective or op_name), _name(step or {}))
        is_of_op = op is not None and kind_of_op(op_name) is kind
        number = numbers.setdefault(id(op), len(numbers)) if is_of_op else -1
        launched_us = _end_us(launch, zero_us) if launch else math.nan
        group = _group(event) if kind.is_grouped else 0
        begin = float(event["ts"]) - zero_us
        times = begin, begin + duration_s(event) * 1e6, launched_us
        stream = str(arguments_of(event).get("stream", event.get("tid")))
        kernels[_process(event)].append(
            TracedKernel(name, kind, group, stream, *times, number, _meets(event, kind))
        )
    return kernels


def _annotations(events: Sequence[Event]) -> Enclosing:
    marks = (OPTIMIZER_STEP, "nccl:")
    annotations = (event for event in events if event.get("cat") == "user_annotation")
    return Enclosing([event for event in annotations if _name(event).startswith(marks)])


def _steps(events: Sequence[Event], zero_us: float) -> dict[str, list[ProfiledStep]]:
    """Return the marked steps of each process; those of all under ""."""
    steps: dict[str, list[ProfiledStep]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "user_annotation" and _STEP.fullmatch(_name(event)):
            begin = float(event["ts"]) - zero_us
            step = ProfiledStep(_name(event), begin, begin + duration_s(event) * 1e6)
            for process in ("", _process(event)):
                steps[process].append(step)
    return steps


def _rank_names(events: Sequence[Event]) -> Mapping[str, int]:
    labels = {
        _process(event): _RANK.match(str(arguments_of(event).get("name")))
        for event in events
        if event.get("ph") == "M" and event.get("name") == "process_name"
    }
    return {process: int(label[1]) for process, label in labels.items() if label}


def _group(event: Event) -> int:
    return _count(arguments_of(event).get("Group size")) or 0


def _meets(event: Event, kind: KernelKind) -> str:
    """Return who takes part in a communication, as PyTorch 2.4 and newer say it."""
    if kind.role is not Role.COMMUNICATION:
        return ""
    arguments = arguments_of(event)
    ends = arguments.get("Src Rank"), arguments.get("Dst Rank")
    if kind is TRANSFER and None not in map(_count, ends):
        return "{} to {}".format(*ends)
    ranks = arguments.get("Process Group Ranks")
    if kind is TRANSFER or not isinstance(ranks, str):
        return ""
    return f"{str(arguments.get('Process Group Name'))[:100]} {ranks[:1000]}"


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
    return value if is_count else None


def _name(event: Event) -> str:
    return str(event.get("name", ""))[:1000]


def _process(event: Event) -> str:
    return repr(event.get("pid"))


def _end_us(event: Event, zero_us: float) -> float:
    return float(event["ts"]) + duration_s(event) * 1e6 - zero_us


def _thread(event: Event) -> str:
    return repr(event.get("tid"))
