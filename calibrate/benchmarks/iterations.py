"""Times whole training iterations of small GPTs and Llama models, which no fit uses."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import Timer, summary
from calibrate.memory.allocator import CudaAllocator
from calibrate.memory.measure import leave_workspaces
from calibrate.records.file import Point
from calibrate.records.schema import IterationRecord
from calibrate.torch_model.models import Data, expert_split, gpt, llama
from calibrate.torch_model.training import Training
from simtrain.scenario import Scenario, check_scenario

_NUM_WARMUPS = 2


@dataclass(frozen=True, slots=True)
class _Case:
    """A model, its microbatch, and the strategies of recompute."""

    model: Data
    micro: int
    recomputes: Sequence[str] = ("none", "selective", "full")
    is_fused: bool = False


def _gpt(vocab: int, micro: int, *sizes: int) -> _Case:
    return _Case(gpt(*sizes) | {"vocab_size": vocab}, micro)


def _llama(vocab: int, micro: int, *sizes: int, groups: int, ffn: int, experts: int = 0) -> _Case:
    """A Llama-like model with fused attention, so that selective recompute saves nothing."""
    model = llama(*sizes, groups=groups, ffn=ffn, experts=experts) | {"vocab_size": vocab}
    return _Case(model, micro, ("none", "full"), is_fused=True)


_CPU_QUICK = [
    _gpt(1024, 2, 2, 256, 4, 128),
    _llama(1024, 2, 2, 256, 4, 128, groups=2, ffn=704),
    _llama(1024, 2, 2, 256, 4, 128, groups=2, ffn=256, experts=4),
]
_CPU = [
    *_CPU_QUICK,
    _gpt(512, 2, 4, 128, 4, 64),
    _gpt(4096, 2, 4, 512, 8, 256),
    _llama(4096, 2, 4, 512, 8, 256, groups=4, ffn=1408),
]
_GPU_QUICK = [
    _gpt(51200, 4, 12, 1024, 16, 1024),
    _llama(32768, 4, 12, 1024, 16, 1024, groups=8, ffn=2816),
    _llama(32768, 4, 8, 1024, 16, 1024, groups=8, ffn=1792, experts=8),
]
_GPU = [
    *_GPU_QUICK,
    _gpt(51200, 4, 12, 2048, 16, 1024),
    _gpt(51200, 1, 6, 4096, 32, 2048),
    _llama(32768, 1, 6, 4096, 32, 4096, groups=8, ffn=14336),
]
"""Vocabulary, microbatch, layers, hidden size, heads, tokens; the largest takes 30 GB with Adam."""
_MICROBATCHES = 4


def iteration_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Points of every model, split and recompute."""
    on_gpu = timer.device == "cuda"
    cases = iteration_cases(timer.ranks.size, on_gpu=on_gpu, quick=sizes.is_quick)
    measures = [partial(measure_iteration, each, timer, sizes.num_iterations) for each in cases]
    return [
        Point(IterationRecord, {"scenario": case}, measure)
        for case, measure in zip(cases, measures, strict=True)
    ]


def iteration_cases(num_ranks: int, *, on_gpu: bool, quick: bool) -> list[Data]:
    """Scenarios for `num_ranks` processes: every model under every split and recompute.

    Sent outputs are not deallocated, and a stage sends its output whole.
    """
    cases = (_GPU_QUICK if quick else _GPU) if on_gpu else (_CPU_QUICK if quick else _CPU)
    return [
        _scenario(case, split, recompute)
        for case in cases
        for split in _splits(num_ranks, case.model)
        for recompute in case.recomputes
    ]


def _splits(num_ranks: int, model: Data) -> list[Data]:
    """Splits: one rank; or all ranks tensor-parallel, all in a pipeline, and half in each."""
    if num_ranks == 1:
        return [{}]
    # Each rank has heads of keys and values of its own.
    num_heads = model.get("num_query_groups") or model["num_attention_heads"]
    splits: list[Data] = []
    if num_heads % num_ranks == 0:
        # A layer with experts needs sequence parallelism.
        sequence = (True,) if "experts" in model else (False, True)
        splits += [{"tensor": num_ranks, "sequence_parallel": each} for each in sequence]
    if model["num_layers"] % num_ranks == 0:
        splits.append({"pipeline": num_ranks})
    half = num_ranks // 2
    if num_ranks % 2 == 0 and half > 1 and num_heads % half == 0:
        splits.append({"tensor": half, "sequence_parallel": True, "pipeline": 2})
    return [split | expert_split(model, split.get("tensor", 1)) for split in splits]


def _scenario(case: _Case, split: Data, recompute: str) -> Data:
    return {
        "model": case.model,
        "parallelism": {**split, "scatter_gather": False},
        "batch": {"micro": case.micro, "global": _MICROBATCHES * case.micro},
        "recompute": recompute,
        "memory": {"deallocate_outputs": False},
    } | ({"attention_backend": "fused"} if case.is_fused else {})


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
    allocator, held_before = CudaAllocator(), 0
    if timer.device == "cuda":
        leave_workspaces()
        allocator.reset_peak()
        held_before = allocator.held_bytes
    training = Training(scenario, timer.device)
    for _ in range(_NUM_WARMUPS):
        training.iteration()
    measured: dict[str, Any] = {
        "time": summary([_seconds(training, timer) for _ in range(num_samples)])
    }
    if timer.device == "cuda":
        (peak_bytes,) = timer.ranks.slowest([allocator.peak_bytes - held_before])
        measured["peak_bytes"] = int(peak_bytes)
    return measured


def _seconds(training: Training, timer: Timer) -> float:
    """Seconds of an iteration from a common start, on the slowest rank."""
    timer.synchronize()
    timer.ranks.meet()
    start_s = time.perf_counter()
    training.iteration()
    timer.synchronize()
    return timer.ranks.slowest([time.perf_counter() - start_s])[0]
