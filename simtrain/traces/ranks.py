"""The kernels of each rank in a trace, with their kinds, launches and groups."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from simtrain.traces.events import (
    Event,
    Progress,
    arguments_of,
    begin_us,
    duration_s,
    no_trace,
    read_events,
    whole_number,
)
from simtrain.traces.kinds import (
    OPTIMIZER,
    OPTIMIZER_STEP,
    OTHER,
    TRANSFER,
    KernelKind,
    Role,
    kind_of_kernel,
    kind_of_op,
)
from simtrain.traces.launches import (
    LAUNCH_CATEGORIES,
    Enclosing,
    launches_by_correlation,
    launching_ops,
)

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CATEGORIES = {*_ON_DEVICE, *LAUNCH_CATEGORIES, "cpu_op", "user_annotation", "metadata"}
_STEP = re.compile(r"ProfilerStep#\d+")
_RANK = re.compile(r"rank (\d{1,9})\b")


class TracedKernel(NamedTuple):
    """A kernel.

    Args:
        name: its name.
        kind: what it does.
        group: ranks of its group; 0 if the trace does not say it.
        stream: the stream, or the thread of a host.
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


class Step(NamedTuple):
    """A step as the profiler's schedule marks it on the host."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The kernels of a rank.

    Args:
        file: where they stand.
        rank: number of the rank; None if the trace does not say it.
        world_size: number of all ranks; None if the trace does not say it.
        is_host: the trace has no device, so that ops of the host count as kernels.
        kernels: in order of start.
        steps: marked steps, in order of time.
    """

    file: Path
    rank: int | None
    world_size: int | None
    is_host: bool
    kernels: tuple[TracedKernel, ...]
    steps: tuple[Step, ...]


def read_rank_traces(path: Path, show_progress: Progress | None = None) -> list[RankTrace]:
    """Read the ranks of a trace: one, or as many as it has processes with names such as "rank 3".

    Raises:
        InputError: E726, it is no trace, or has neither kernels nor ops.
    """
    trace = read_events(path, _CATEGORIES, show_progress)
    timed = [event for event in trace.events if begin_us(event) is not None and duration_s(event)]
    of_device = [event for event in timed if event.get("cat") in _ON_DEVICE]
    zero_us = min((float(event["ts"]) for event in timed), default=0.0)
    is_host = not any(event.get("cat") == "kernel" for event in of_device)
    kernels = _host_kernels(timed, zero_us) if is_host else _kernels(of_device, timed, zero_us)
    if not kernels:
        raise no_trace(path, "it has neither kernels nor ops with times")
    steps = _steps(timed, zero_us)
    world: Any = trace.header.get("distributedInfo")
    world = world if isinstance(world, dict) else {}
    rank, size = (_count(world.get(key)) for key in ("rank", "world_size"))
    names = _rank_names(trace.events)
    processes = sorted(kernels.keys() & names.keys()) if not is_host else []
    if not processes:  # the processes are the devices of one rank
        every = [kernel for process in kernels.values() for kernel in process]
        return [_rank_trace(path, rank, size, is_host, every, steps.get("", []))]
    return [
        _rank_trace(path, names[process], size, False, kernels[process], steps.get(process, []))
        for process in processes
    ]


def _rank_trace(
    path: Path,
    rank: int | None,
    size: int | None,
    is_host: bool,
    kernels: list[TracedKernel],
    steps: list[Step],
) -> RankTrace:
    kernels.sort(key=attrgetter("start_us", "end_us"))
    return RankTrace(path, rank, size, is_host, tuple(kernels), tuple(sorted(steps, key=_start)))


def _start(step: Step) -> float:
    return step.start_us


def _kernels(
    of_device: Sequence[Event], events: Sequence[Event], zero_us: float
) -> dict[str, list[TracedKernel]]:
    """Return the kernels of a device, by process."""
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


def _host_kernels(events: Sequence[Event], zero_us: float) -> dict[str, list[TracedKernel]]:
    """Return the ops of a host that do the work: outermost ops with a kind, and others' leaves."""
    annotations = _annotations(events)
    by_thread: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            by_thread[_process(event), repr(event.get("tid"))].append(event)
    kernels: dict[str, list[TracedKernel]] = defaultdict(list)
    for (process, thread), ops in by_thread.items():
        ops.sort(key=lambda op: (op["ts"], -op["dur"]))
        ends = [float(op["ts"]) + duration_s(op) * 1e6 for op in ops]
        covered_us = -math.inf
        for place, op in enumerate(ops):
            if op["ts"] < covered_us:
                continue
            kind = kind_of_op(_name(op))
            is_leaf = place + 1 == len(ops) or ops[place + 1]["ts"] >= ends[place]
            if kind is None and not is_leaf:
                continue
            covered_us = ends[place]
            if kind is None or kind.role is Role.COMPUTE:
                step = _name(annotations.of(op) or {})
                kind = OPTIMIZER if step.startswith(OPTIMIZER_STEP) else kind
            times = float(op["ts"]) - zero_us, ends[place] - zero_us, math.nan
            kernel = TracedKernel(_name(op), kind or OTHER, _group(op), thread, *times, -1)
            kernels[process].append(kernel)
    return kernels


def _annotations(events: Sequence[Event]) -> Enclosing:
    """Return the steps of optimizers and the calls of NCCL, as the profiler marks them."""
    marks = (OPTIMIZER_STEP, "nccl:")
    annotations = (event for event in events if event.get("cat") == "user_annotation")
    return Enclosing([event for event in annotations if _name(event).startswith(marks)])


def _steps(events: Sequence[Event], zero_us: float) -> dict[str, list[Step]]:
    """Return the marked steps of each process; those of all under ""."""
    steps: dict[str, list[Step]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "user_annotation" and _STEP.fullmatch(_name(event)):
            begin = float(event["ts"]) - zero_us
            step = Step(_name(event), begin, begin + duration_s(event) * 1e6)
            for process in ("", _process(event)):
                steps[process].append(step)
    return steps


def _rank_names(events: Sequence[Event]) -> Mapping[str, int]:
    """Return the ranks of processes whose names begin with it, as in simtrain's traces."""
    return {_process(event): rank for event in events for rank in _rank_of_process(event)}


def _rank_of_process(event: Event) -> Iterator[int]:
    if event.get("ph") == "M" and event.get("name") == "process_name":
        label = _RANK.match(str(arguments_of(event).get("name")))
        if label:
            yield int(label[1])


def _group(event: Event) -> int:
    """Return the ranks of a collective's group; 0 if the trace does not say it."""
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
