"""Whole training iterations of small GPTs, timed: what a fit never sees."""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
import torch.distributed as dist

from calibrate.benchmarks.timing import summary
from calibrate.memory.allocator import CudaAllocator
from calibrate.memory.measure import leave_workspaces
from calibrate.records.schema import IterationRecord
from calibrate.torch_model.training import Training
from simtrain.scenario import Scenario, check_scenario

_NUM_WARMUPS = 2


def measure_iteration(case: dict[str, Any], device: str, num_samples: int) -> IterationRecord:
    """Train the scenario whose plain data `case` is for two iterations, then time more.

    Raises:
        InputError: the scenario breaks a rule of the framework.
        ValueError: it needs another number of processes than there are.
    """
    scenario = Scenario.model_validate(case)
    check_scenario(scenario)
    held_before = _start(device)
    training = Training(scenario, device)
    for _ in range(_NUM_WARMUPS):
        training.iteration()
    samples = [_timed(training, device) for _ in range(num_samples)]
    peak_bytes = _peak_bytes(held_before) if _is_cuda(device) else None
    return IterationRecord(scenario=case, time=summary(samples), peak_bytes=peak_bytes)


def _start(device: str) -> int:
    """Bytes that are held of the device before anything of the case is."""
    gc.collect()
    if not _is_cuda(device):
        return 0
    leave_workspaces()
    allocator = CudaAllocator()
    allocator.reset_peak()
    return allocator.held_bytes


def _timed(training: Training, device: str) -> float:
    """Seconds of an iteration from a common start, on the slowest rank."""
    _synchronize(device)
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    training.iteration()
    _synchronize(device)
    return _largest(time.perf_counter() - start, device)


def _peak_bytes(held_before: int) -> int:
    return int(_largest(CudaAllocator().peak_bytes - held_before, "cuda"))


def _largest(value: float, device: str) -> float:
    if not dist.is_initialized():
        return value
    largest = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


def _synchronize(device: str) -> None:
    if _is_cuda(device):
        torch.cuda.synchronize()


def _is_cuda(device: str) -> bool:
    return torch.device(device).type == "cuda"
