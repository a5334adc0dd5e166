"""Small traces in the format of PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
import pathlib
from typing import Any

Event = dict[str, Any]


def kernel(name: str, start: float, duration: float, stream: int = 7, **arguments: Any) -> Event:
    """Return a kernel of a device; times in microseconds."""
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream}
    return event | {"ts": start, "dur": duration, "args": {"stream": stream, **arguments}}


def launched(name: str, launch: float, start: float, duration: float, number: int) -> list[Event]:
    """Return a kernel and its launch, which takes a microsecond."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9}
    call |= {"ts": launch, "dur": 1, "args": {"correlation": number}}
    return [call, kernel(name, start, duration, correlation=number)]


def step(number: int, start: float, duration: float) -> Event:
    """Return a step as the profiler's schedule marks it."""
    event = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 9}
    return event | {"tid": 9, "ts": start, "dur": duration}


def write(file: pathlib.Path, events: list[Event], **header: Any) -> pathlib.Path:
    """Write a trace, packed if its name says so."""
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": events}).encode()
    file.write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)
    return file
