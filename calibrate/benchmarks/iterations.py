"""Times whole training iterations of small GPTs and Llama models, which no fit uses."""

import gc
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import Timer, summary
from calibrate.memory.measure import CudaAllocator, leave_workspaces
from calibrate.records.file import MeasurementPoint
from calibrate.records.schema import IterationRecord
from calibrate.torch_model.models import Data, expert_split
from calibrate.torch_model.training import TrainingRank
from simtrain.scenario import Scenario, check_scenario

_NUM_WARMUPS = 2
_FEWEST_SAMPLES, _LONGEST_S = 2, 10.0
_MICROBATCHES = 4


def iteration_points(sizes: Sizes, timer: Timer) -> list[MeasurementPoint]:
    """Points of every model, split and recompute."""
    measure = partial(measure_iteration, timer=timer, num_samples=sizes.num_iterations)
    cases = iteration_cases(timer.ranks.size, sizes)
    return [
        MeasurementPoint(IterationRecord, {"scenario": case}, partial(measure, case))
        for case in cases
    ]


def iteration_cases(num_ranks: int, sizes: Sizes) -> list[Data]:
    """Scenarios for `num_ranks` processes: every model under every split and recompute.

    Llama models have fused attention, except in fp32. Sent outputs are not deallocated, and a stage
    sends its output whole.
    """
    cases = []
    for size in sizes.models:
        model, micro = size.layer.model(size.num_layers), size.layer.microbatch
        is_llama = "num_query_groups" in model
        is_fused = is_llama and sizes.has_fused_attention
        recomputes = ("none", "full") if is_llama else ("none", "selective", "full")
        for split, recompute in product(_splits(num_ranks, model), recomputes):
            case = {
                "model": model | {"vocab_size": size.vocab},
                "parallelism": {**split, "scatter_gather": False},
                "batch": {"micro": micro, "global": _MICROBATCHES * micro},
                "recompute": recompute,
                "memory": {"deallocate_outputs": False},
            }
            fused = {"attention_backend": "fused"} if is_fused else {}
            cases.append(sizes.in_precision(case | fused))
    # One of each model and split before any recompute: a measurement that ends early has them all.
    order = ("none", "full", "selective")
    return sorted(cases, key=lambda case: order.index(case["recompute"]))


def _splits(num_ranks: int, model: Data) -> Iterator[Data]:
    """Splits: one rank; or all ranks tensor-parallel, all in a pipeline, and half in each."""
    if num_ranks == 1:
        yield {}
        return
    # Each rank has heads of keys and values of its own.
    num_heads = model.get("num_query_groups") or model["num_attention_heads"]
    half = num_ranks // 2
    if num_heads % num_ranks == 0:
        # A layer with experts needs sequence parallelism.
        for sequence in (True,) if "experts" in model else (False, True):
            split = {"tensor": num_ranks, "sequence_parallel": sequence}
            yield split | expert_split(model, num_ranks)
    if model["num_layers"] % num_ranks == 0:
        yield {"pipeline": num_ranks}
    if num_ranks % 2 == 0 and half > 1 and num_heads % half == 0:
        split = {"tensor": half, "sequence_parallel": True, "pipeline": 2}
        yield split | expert_split(model, half)


def measure_iteration(case: Data, timer: Timer, num_samples: int) -> dict[str, Any]:
    """The measured fields of an IterationRecord: `num_samples` iterations after two others.

    Slow iterations are fewer, but two at least.

    Each begins on all ranks at the same time, and ends on the slowest.

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
    training = TrainingRank(scenario, timer.device)
    seconds = [timer.once(training.iteration)[1] for _ in range(_NUM_WARMUPS)]
    # The same sum on all ranks, so that they stop at the same iteration.
    samples = list[float]()
    while len(samples) < num_samples:
        samples += timer.once(training.iteration)[1:]
        if len(samples) >= _FEWEST_SAMPLES and sum(seconds) + sum(samples) > _LONGEST_S:
            break
    measured: dict[str, Any] = {"time": summary(samples)}
    if timer.device == "cuda":
        (peak_bytes,) = timer.ranks.slowest([allocator.peak_bytes - held_before])
        measured["peak_bytes"] = int(peak_bytes)
    return measured
