"""Times the core of fused attention alone, forward and backward."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import RandomData, Run, Timer, random_data
from calibrate.records.file import Point
from calibrate.records.schema import AttentionRecord
from calibrate.torch_model.layer import fused_core

_NUM_TENSORS = 8
"""Query, key, value, output, and the gradient of each."""


def attention_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Points of every number of heads and every length; heads are as wide as the first layer's."""
    layer = sizes.layers[0]
    head_size = layer.hidden // layer.heads
    return [
        Point(
            AttentionRecord,
            {"heads": heads, "seq_length": length, "head_size": head_size},
            partial(_measure, heads, length, head_size, timer),
        )
        for heads, length in product(sizes.attention_heads, sizes.attention_lengths)
    ]


def _measure(heads: int, length: int, head_size: int, timer: Timer) -> dict[str, Any]:
    data = random_data(timer.device, torch.bfloat16)
    num_bytes = _NUM_TENSORS * torch.bfloat16.itemsize * heads * length * head_size
    cases = [_runs(heads, length, head_size, data) for _ in range(timer.copies(num_bytes))]
    forward, backward = (timer.time(runs) for runs in zip(*cases, strict=True))
    return {"forward": forward, "backward": backward}


def _runs(heads: int, length: int, head_size: int, data: RandomData) -> tuple[Run, Run]:
    """Forward and backward on Q, K and V that are views of one tensor, as in a layer.

    The times leave out the op that joins the gradients of the three.
    """
    packed = data.take(length, heads, 3, head_size)
    operands = [part.transpose(0, 1).detach().requires_grad_() for part in packed.unbind(2)]
    output = fused_core(*operands)
    gradient = data.take(length, heads, head_size).transpose(0, 1)
    return partial(fused_core, *operands), partial(_gradients, output, operands, gradient)


def _gradients(output: Tensor, operands: list[Tensor], gradient: Tensor) -> object:
    return torch.autograd.grad(output, operands, gradient, retain_graph=True)
