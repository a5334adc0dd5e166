"""Times layers, forward and backward: the paper's under the strategies of Table 4, and Llama's.

A fit uses one layer, the first size without recompute and sequence parallelism, to find the speed
of products inside a layer. All others are held out to validate the profile, ten times as many:
every other strategy and size, fused attention of each size, and all layers of Llama. In fp32 no
layer has fused attention.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrate.benchmarks.products import DTYPES
from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import Run, Timer
from calibrate.records.file import MeasurementPoint
from calibrate.records.schema import LayerRecord, MemoryRecord
from calibrate.torch_model.layer import Recompute, TorchLayer
from calibrate.torch_model.models import Data, LayerSize, expert_split
from calibrate.torch_model.parallel import TensorGroup
from calibrate.torch_model.shape import LayerShape
from calibrate.torch_model.training import MixedPrecisionAdam
from simtrain.scenario import Scenario

_NUM_LAYERS = 2
"""Layers that run in turn, so that no cache holds a weight from its last use."""
_NUM_BUDGETS = 5
"""Time budgets of a layer. Layers have many kernels, and profiles are validated on them."""


def layer_points(sizes: Sizes, timer: Timer) -> list[MeasurementPoint]:
    """Points of every size and strategy that this number of ranks can have, fused, and Llama's.

    All ranks divide a layer.
    """
    patient = replace(timer, budget_s=_NUM_BUDGETS * timer.budget_s)

    def measure(case: Data) -> dict[str, Any]:
        forward, backward = patient.time_parts(_passes(case, timer.device))
        return {"forward": forward, "backward": backward}

    return [
        MeasurementPoint(
            LayerRecord, {"scenario": case, "held_out": number > 0}, partial(measure, case)
        )
        for number, case in enumerate(map(sizes.in_precision, _cases(sizes, timer.ranks.size)))
    ]


def _cases(sizes: Sizes, num_ranks: int) -> Iterator[Data]:
    """Scenarios of the layers; the first is plain."""
    several, none, full = num_ranks > 1, Recompute.NONE, Recompute.FULL
    plain = {"tensor": num_ranks, "sequence_parallel": False}
    fused = {"attention_backend": "fused"} if sizes.has_fused_attention else {}
    for size in sizes.layers:
        # Table 4: recompute and sequence parallelism.
        for recompute in (none, full, Recompute.SELECTIVE):
            yield _scenario(size, recompute, plain)
            if several and recompute is not full:
                yield _scenario(size, recompute, plain | {"sequence_parallel": True})
    for size in sizes.layers if sizes.has_fused_attention else ():
        yield _scenario(size, none, plain) | fused
    for size in sizes.llama_layers:
        if size.groups % num_ranks == size.experts % num_ranks == 0:
            for recompute in (none, full):
                yield _scenario(size, recompute, plain | {"sequence_parallel": several}) | fused


def memory_points(sizes: Sizes, timer: Timer) -> list[MeasurementPoint]:
    """Point of the memory that CUDA and its allocator hold besides tensors; none on a CPU."""
    if timer.device != "cuda":
        return []
    split = {"tensor": timer.ranks.size, "sequence_parallel": False}
    case = sizes.in_precision(_scenario(sizes.layers[0], Recompute.NONE, split))
    return [MeasurementPoint(MemoryRecord, {}, partial(_measure_memory, case))]


def _scenario(size: LayerSize, recompute: Recompute, split: Data) -> Data:
    model = size.model()
    return {
        "model": model,
        "parallelism": split | expert_split(model, split.get("tensor", 1)),
        "batch": {"micro": size.microbatch, "global": size.microbatch},
        "recompute": recompute.value,
    }


def _passes(case: Data, device: str) -> tuple[Run, Run]:
    """A forward and a backward pass in turn; weight gradients are fp32, as in training."""
    scenario = Scenario.model_validate(case)
    shape, dtype = LayerShape.of(scenario), DTYPES[scenario.precision.compute]
    group = TensorGroup(shape.tensor, shape.sequence_parallel)
    torch.manual_seed(1)  # the ranks' dropout masks must agree
    recompute = Recompute(case["recompute"])
    with torch.device(device):
        made = [TorchLayer(shape, recompute, group).to(dtype) for _ in range(_NUM_LAYERS)]
    layers = [(layer, MixedPrecisionAdam(layer.parameters(), 1e-4)) for layer in made]
    tokens = shape.local_tokens // shape.microbatch, shape.microbatch, shape.hidden
    hidden, gradient = (torch.randn(tokens, dtype=dtype, device=device) for _ in range(2))
    hidden.requires_grad_()
    outputs: list[Tensor] = []

    def forward() -> None:
        layers.append(layers.pop(0))
        outputs.append(layers[0][0](hidden))

    def backward() -> None:
        outputs.pop().backward(gradient)
        hidden.grad = None

    return forward, backward


def _measure_memory(case: Data) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    forward, backward = _passes(case, "cuda")
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
