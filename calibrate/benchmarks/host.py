"""Times the host's part of an offloaded optimizer: copies over the link, and Adam on the CPU.

All ranks run at the same time, so that each gets its share of the host.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import Run, Timer
from calibrate.records.file import Point
from calibrate.records.schema import HostRecord
from calibrate.torch_model.adam import fused_adam
from simtrain.system import num_processors

_ADAM_BYTES = 28
"""Bytes of a parameter: gradient, weight and moments are read, weight and moments written."""


def host_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Points of copies both ways and Adam, of each size; none on a CPU, which is its own host."""
    if timer.device != "cuda":
        return []

    def copy(way: str, num_bytes: int) -> dict[str, Any]:
        return {"time": timer.time(copy_runs(way, num_bytes, timer))}

    def adam(_: str, num_bytes: int) -> dict[str, Any]:
        """Time Adam by the host's clock, on this rank's share of the cores."""
        host = replace(timer, device="cpu")
        before = torch.get_num_threads()  # torchrun gives each process one thread
        torch.set_num_threads(max(num_processors() // timer.ranks.per_node, 1))
        try:
            return {"time": host.time(adam_runs(num_bytes, host))}
        finally:
            torch.set_num_threads(before)

    return [
        Point(HostRecord, {"what": what, "num_bytes": size}, partial(measure, what, size))
        for what, measure, unit in (
            ("to_device", copy, 1),
            ("to_host", copy, 1),
            ("adam", adam, _ADAM_BYTES),
        )
        for size in (max(num_bytes // unit, 1) * unit for num_bytes in sizes.host_bytes)
    ]


def copy_runs(way: str, num_bytes: int, timer: Timer) -> list[Run]:
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
    count, runs = max(num_bytes // _ADAM_BYTES, 1), list[Run]()
    for _ in range(timer.copies(num_bytes)):
        weights, gradients, momenta, variances = ([torch.full((count,), 0.1)] for _ in range(4))
        runs.append(partial(fused_adam, weights, gradients, momenta, variances, 1, 1e-4))
    return runs
