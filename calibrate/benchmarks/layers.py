"""Times layers, forward and backward: the paper's under the strategies of Table 4, and Llama's.

A fit uses one layer, the first size without recompute and sequence parallelism, to find the speed
of products inside a layer. All others are held out to validate the profile, ten times as many:
every other strategy and size, fused attention of each size, and all layers of Llama, one of which
has its sequences divided instead of its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrate.benchmarks.sizes import LayerSize, LlamaSize, Sizes
from calibrate.benchmarks.timing import Run, Timer
from calibrate.records.file import Point
from calibrate.records.schema import LayerRecord, MemoryRecord
from calibrate.torch_model.adam import MixedPrecisionAdam
from calibrate.torch_model.layer import Recompute, TransformerLayer
from calibrate.torch_model.models import Data, expert_split, gpt, llama
from calibrate.torch_model.parallel import TensorGroup
from calibrate.torch_model.shape import LayerShape
from simtrain.scenario import Scenario

_NUM_LAYERS = 2
"""Layers that run in turn, so that no cache holds a weight from its last use."""
_NUM_BUDGETS = 5
"""Time budgets of a layer. Layers have many kernels, and profiles are validated on them."""


def layer_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Points of every size and strategy that this number of ranks can have, fused, and Llama's."""
    paper = [
        _point(size, recompute, sequence, timer, held_out=number > 0 or strategy > 0)
        for number, size in enumerate(sizes.layers)
        for strategy, (recompute, sequence) in enumerate(_strategies(timer.ranks.size))
    ]
    fused = [_point(size, Recompute.NONE, False, timer, backend="fused") for size in sizes.layers]
    several = timer.ranks.size > 1
    today = [
        _point(size, recompute, several, timer, backend="fused")
        for size in sizes.llama_layers
        for recompute in (Recompute.NONE, Recompute.FULL)
        if size.groups % timer.ranks.size == size.experts % timer.ranks.size == 0
    ]
    divided = [
        _point(size, Recompute.NONE, False, timer, backend="fused", context=True)
        for size in sizes.llama_layers[:1]
        if several and size.seq_length % (2 * timer.ranks.size) == 0
    ]
    return paper + fused + today + divided


def memory_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Point of the memory that CUDA and its allocator hold besides tensors; none on a CPU."""
    if timer.device != "cuda":
        return []
    scenario = _scenario(sizes.layers[0], Recompute.NONE, timer.ranks.size, sequence=False)
    return [Point(MemoryRecord, {}, partial(_measure_memory, scenario))]


def _strategies(num_ranks: int) -> Iterator[tuple[Recompute, bool]]:
    """Strategies of Table 4: recompute and sequence parallelism; the plain one is the first."""
    for recompute in (Recompute.NONE, Recompute.FULL, Recompute.SELECTIVE):
        yield recompute, False
        if num_ranks > 1 and recompute is not Recompute.FULL:
            yield recompute, True


def _point(
    size: LayerSize,
    recompute: Recompute,
    sequence: bool,
    timer: Timer,
    *,
    held_out: bool = True,
    backend: str = "unfused",
    context: bool = False,
) -> Point:
    """A layer that all ranks divide: its weights, or if `context` its sequences."""
    scenario = _scenario(size, recompute, 1 if context else timer.ranks.size, sequence=sequence)
    if context:
        scenario["parallelism"] = {"context": timer.ranks.size}
    if backend != "unfused":
        scenario["attention_backend"] = backend
    what = {"scenario": scenario, "held_out": held_out}
    return Point(LayerRecord, what, partial(_measure, scenario, timer))


def _scenario(size: LayerSize, recompute: Recompute, tensor: int, *, sequence: bool) -> Data:
    sizes = 1, size.hidden, size.heads, size.seq_length
    model = gpt(*sizes)
    if isinstance(size, LlamaSize):
        model = llama(*sizes, groups=size.groups, ffn=size.ffn, experts=size.experts)
    split = {"tensor": tensor, "sequence_parallel": sequence}
    return {
        "model": model,
        "parallelism": split | expert_split(model, tensor),
        "batch": {"micro": size.microbatch, "global": size.microbatch},
        "recompute": recompute.value,
    }


def _measure(data: dict[str, Any], timer: Timer) -> dict[str, Any]:
    """Time forward and backward in turn; weight gradients are fp32, as in training."""
    patient = replace(timer, budget_s=_NUM_BUDGETS * timer.budget_s)
    forward, backward = patient.time_parts(_passes(data, timer.device))
    return {"forward": forward, "backward": backward}


def _passes(data: dict[str, Any], device: str) -> tuple[Run, Run]:
    scenario = Scenario.model_validate(data)
    shape = LayerShape.of(scenario)
    group = TensorGroup(shape.tensor, shape.sequence_parallel)
    torch.manual_seed(1)  # the ranks' dropout masks must agree
    recompute = Recompute(data["recompute"])
    with torch.device(device):
        layers = [TransformerLayer(shape, recompute, group).bfloat16() for _ in range(_NUM_LAYERS)]
    optimizers = [MixedPrecisionAdam(layer.parameters(), 1e-4) for layer in layers]
    tokens = shape.local_tokens // shape.microbatch, shape.microbatch, shape.hidden
    hidden, gradient = (torch.randn(tokens, dtype=torch.bfloat16, device=device) for _ in range(2))
    hidden.requires_grad_()
    outputs: list[Tensor] = []

    def forward() -> None:
        layers.append(layers.pop(0))
        outputs.append(layers[0](hidden))

    def backward() -> None:
        outputs.pop().backward(gradient)
        hidden.grad = None

    assert len(optimizers) == len(layers)
    return forward, backward


def _measure_memory(data: dict[str, Any]) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    forward, backward = _passes(data, "cuda")
    for _ in range(3):
        forward()
        backward()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.max_memory_reserved()
    return {
        "reserved_over_allocated": reserved / torch.cuda.max_memory_allocated(),
        "outside_allocator_bytes": total - free - torch.cuda.memory_reserved(),
    }
