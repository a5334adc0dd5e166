"""Times the host's part of an offloaded optimizer: copies over the link, and Adam on the CPU.

All ranks run at the same time, so that each gets its share of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch

from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import Run, Timer
from calibrate.records.file import Point
from calibrate.records.schema import HostRecord
from calibrate.torch_model.adam import fused_adam
from simtrain.system import num_processors

Way = Literal["to_device", "to_host"]
_WAYS: tuple[Way, ...] = ("to_device", "to_host")
_ADAM_BYTES = 28
"""Bytes of a parameter: gradient, weight and moments are read, weight and moments written."""


def host_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Points of copies both ways and Adam, of each size; none on a CPU, which is its own host."""
    if timer.device != "cuda":
        return []
    copies = [
        _point(way, size, partial(_measure_copy, way, size, timer))
        for way in _WAYS
        for size in sizes.host_bytes
    ]
    adam = [
        _point("adam", _ADAM_BYTES * _num_parameters(size), partial(_measure_adam, size, timer))
        for size in sizes.host_bytes
    ]
    return copies + adam


def copy_runs(way: Way, num_bytes: int, timer: Timer) -> list[Run]:
    """Copies between pinned memory and the device, buffers in turn."""
    runs: list[Run] = []
    for _ in range(timer.copies(num_bytes)):
        host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=timer.device == "cuda")
        device = torch.zeros(num_bytes, dtype=torch.uint8, device=timer.device)
        target, source = (device, host) if way == "to_device" else (host, device)
        runs.append(partial(target.copy_, source, non_blocking=True))
    return runs


def adam_runs(num_bytes: int, timer: Timer) -> list[Run]:
    """Adam steps of parameters in fp32 whose states take about `num_bytes` to read and write."""
    count = _num_parameters(num_bytes)
    return [_adam(count) for _ in range(timer.copies(num_bytes))]


def _point(what: str, num_bytes: int, measure: partial[dict[str, Any]]) -> Point:
    return Point(HostRecord, {"what": what, "num_bytes": num_bytes}, measure)


def _measure_copy(way: Way, num_bytes: int, timer: Timer) -> dict[str, Any]:
    return {"time": timer.time(copy_runs(way, num_bytes, timer))}


def _measure_adam(num_bytes: int, timer: Timer) -> dict[str, Any]:
    """Time Adam by the host's clock, on this rank's share of the cores."""
    host = replace(timer, device="cpu")
    with _share_of_cores(timer.ranks.per_node):
        return {"time": host.time(adam_runs(num_bytes, host))}


def _adam(count: int) -> Run:
    weights, gradients, momenta, variances = (torch.full((count,), 0.1) for _ in range(4))
    return partial(fused_adam, [weights], [gradients], [momenta], [variances], 1, 1e-4)


def _num_parameters(num_bytes: int) -> int:
    return max(num_bytes // _ADAM_BYTES, 1)


@contextmanager
def _share_of_cores(num_ranks: int) -> Iterator[None]:
    """Let torch use this rank's share of the cores; torchrun gives each process one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(num_processors() // num_ranks, 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)
