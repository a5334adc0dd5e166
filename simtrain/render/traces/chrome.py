"""Write a trace as JSON in Chrome's format, like Kineto (PyTorch's profiler).

A process is a rank, and a thread is one of its streams. Holistic Trace Analysis (HTA) counts an
event as a kernel if it has a stream. A kernel is communication if its name begins with `nccl`, a
memory operation if it begins with `Memcpy`, and else computation. `Breakdown` does not count copies
on streams of collectives as compute either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import IO

from simtrain.render.traces.events import (
    HOST_THREAD,
    THREADS,
    Slice,
    SliceKind,
    TraceEvents,
    nanoseconds,
)
from simtrain.scenario import Scenario

_CATEGORIES = {
    SliceKind.KERNEL: "kernel",
    SliceKind.COLLECTIVE: "kernel",
    SliceKind.COPY: "gpu_memcpy",
    SliceKind.LAUNCH: "cuda_runtime",
    SliceKind.HOST_WORK: "user_annotation",
    SliceKind.PASS: "gpu_user_annotation",
}
_ON_GPU = {
    SliceKind.KERNEL: "",
    SliceKind.COLLECTIVE: "ncclDevKernel ",
    SliceKind.COPY: "Memcpy DtoD ",
}
"""Prefixes of the names of kernels."""


def write_chrome(
    events: TraceEvents, stages: Sequence[int], target: IO[bytes], *, critical_path: bool
) -> None:
    """Write the ranks of some stages, and the critical path as a process of its own."""
    result = events.result
    header = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "traceName": _name(result.scenario),
        "distributedInfo": {
            "backend": "nccl",
            "rank": events.place(stages[0])[0],
            "world_size": result.scenario.num_gpus,
        },
    }
    target.write(f'{json.dumps(header)[:-1]}, "traceEvents": [\n'.encode())
    blocks = [_of_stage(events, stage) for stage in stages]
    if critical_path:
        blocks.append(_critical_path(events))
    for number, block in enumerate(blocks):
        target.write(((",\n" if number else "") + ",\n".join(block)).encode())
    target.write(b"\n]}\n")


def _name(scenario: Scenario) -> str:
    """Name the trace; if the scenario varies, say that this iteration does not."""
    shown = ", without variation" if scenario.variation.is_set else ""
    return f"{scenario.name or 'unnamed'}{shown}"


def _of_stage(events: TraceEvents, stage: int) -> Iterator[str]:
    rank, node, gpu = events.place(stage)
    yield metadata(
        rank, "process_name", name=f"rank {rank} (node {node}, GPU {gpu}), stage {stage}"
    )
    yield metadata(rank, "process_sort_index", sort_index=rank)
    for thread in sorted({HOST_THREAD, *events.threads(stage)}):
        yield metadata(rank, "thread_name", thread, name=THREADS[thread])
        yield metadata(rank, "thread_sort_index", thread, sort_index=thread)
    yield _step(events, rank)
    for slice_ in events.slices(stage):
        yield _slice(
            slice_, rank, _CATEGORIES[slice_.kind], gpu if slice_.kind in _ON_GPU else None
        )
    head = f'{{"ph": "C", "name": "memory", "pid": {rank}, "ts": '
    for time, value in zip(*events.memory_bytes(stage), strict=True):
        yield f'{head}{microseconds(time)}, "args": {{"bytes": {value}}}}}'


def _step(events: TraceEvents, rank: int) -> str:
    """Return the iteration as the profiler's schedule marks it on the host."""
    whole_ns = int(nanoseconds(events.result.timeline.end_s).max())
    step = Slice(HOST_THREAD, SliceKind.HOST_WORK, "ProfilerStep#0", 0, whole_ns, 0)
    return _slice(step, rank, _CATEGORIES[step.kind], None)


def _critical_path(events: TraceEvents) -> Iterator[str]:
    process = events.result.scenario.num_gpus  # one more than the last rank
    yield metadata(process, "process_name", name="critical path")
    yield metadata(process, "process_sort_index", sort_index=-1)
    for slice_ in events.critical_path():
        yield _slice(slice_, process, "critical_path", None)


def _slice(slice_: Slice, process: int, category: str, gpu: int | None) -> str:
    """Return the event of a slice as JSON. `gpu` is None for events outside GPU streams."""
    thread, kind, name, start_ns, end_ns, number, collective = slice_
    if gpu is not None:
        name = _ON_GPU[kind] + name
    elif kind is SliceKind.LAUNCH:
        name = "cudaLaunchKernel"
    stream = "" if gpu is None else f'"device": {gpu}, "stream": {thread}, '
    if collective is not None:
        stream += '"Collective name": "{}", "Group size": {}, '.format(*collective)
    return (
        f'{{"ph": "X", "cat": "{category}", "name": {quoted(name)}, "pid": {process}, '
        f'"tid": {thread}, "ts": {microseconds(start_ns)}, '
        f'"dur": {microseconds(end_ns - start_ns)}, '
        f'"args": {{{stream}"correlation": {number}}}}}'
    )


def metadata(process: int, event: str, thread: int | None = None, **values: object) -> str:
    """Return an event that names or sorts a process or a thread, as JSON."""
    tid = {} if thread is None else {"tid": thread}
    return json.dumps({"ph": "M", "name": event, "pid": process, **tid, "args": values})


def microseconds(time_ns: int) -> str:
    """Return nanoseconds as the microseconds of the format."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"
