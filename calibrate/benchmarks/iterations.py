"""Times whole training iterations of small GPTs, which no fit sees."""

from __future__ import annotations

import gc
import time
from typing import Any

from calibrate.benchmarks.timing import Timer, summary
from calibrate.memory.allocator import CudaAllocator
from calibrate.memory.measure import leave_workspaces
from calibrate.torch_model.training import Training
from simtrain.scenario import Scenario, check_scenario

_NUM_WARMUPS = 2


def measure_iteration(case: dict[str, Any], timer: Timer, num_samples: int) -> dict[str, Any]:
    """The measured fields of an IterationRecord: `num_samples` iterations after two others.

    Args:
        case: plain data of a scenario.
        timer: the device and the ranks.
        num_samples: timed iterations.

    Raises:
        InputError: the scenario breaks a rule of the framework.
        ValueError: it needs another number of processes than there are.
    """
    scenario = Scenario.model_validate(case)
    check_scenario(scenario)
    gc.collect()
    allocator, held_before = None, 0
    if timer.device == "cuda":
        leave_workspaces()
        allocator = CudaAllocator()
        allocator.reset_peak()
        held_before = allocator.held_bytes
    training = Training(scenario, timer.device)
    for _ in range(_NUM_WARMUPS):
        training.iteration()
    samples = [_seconds(training, timer) for _ in range(num_samples)]
    peak_bytes = None
    if allocator is not None:
        peak_bytes = int(timer.ranks.slowest([allocator.peak_bytes - held_before])[0])
    return {"time": summary(samples), "peak_bytes": peak_bytes}


def _seconds(training: Training, timer: Timer) -> float:
    """Seconds of an iteration from a common start, on the slowest rank."""
    timer.synchronize()
    timer.ranks.meet()
    start_s = time.perf_counter()
    training.iteration()
    timer.synchronize()
    return timer.ranks.slowest([time.perf_counter() - start_s])[0]
