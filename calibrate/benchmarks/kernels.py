"""Times kernels of a layer and of the optimizer, fused attention, and launches.

Each benchmark runs an op of `torch_model`, which may be several kernels of torch. Its bytes are
those of one fused kernel, as in `simtrain.workload`, so that the rate is that of a layer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import RandomData, Run, Timer, random_data, summary
from calibrate.records.file import Point
from calibrate.records.schema import AttentionRecord, KernelRecord, LaunchRecord
from calibrate.torch_model.adam import MixedPrecisionAdam
from calibrate.torch_model.kernels import rms_norm, rotated, swiglu
from calibrate.torch_model.layer import (
    bias_dropout_residual,
    causal_softmax,
    dropout,
    fused_core,
)

_WIDTH = 1024
"""Width of norms and biases, below every measured number of elements."""
_HEAD_SIZE = 64
Shape = tuple[int, ...]
"""All dimensions of an input but the first."""
_ROWS: Shape = (_WIDTH,)
_WIDE_ROWS: Shape = (2 * _WIDTH,)
_SCORES: Shape = (256, 256)
_BIAS: Shape = ()
_NUM_LAUNCHES = 1000
_NUM_LAUNCH_SAMPLES = 20
Prepare = Callable[[RandomData, int], Run]
"""Makes a run of a kernel over a number of elements."""
_NUM_ATTENTION_TENSORS = 8
"""Query, key, value, output, and the gradient of each."""


def kernel_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Points of every kernel and number of elements, and of the launch of a kernel."""

    def measure(prepare: Prepare, count: int, num_bytes: int) -> dict[str, Any]:
        """Time a kernel on `count` elements; copies of its data exceed the caches."""
        data = random_data(timer.device, torch.bfloat16)
        with torch.no_grad():
            return {
                "time": timer.time([prepare(data, count) for _ in range(timer.copies(num_bytes))])
            }

    points = []
    for (name, (per_element, prepare)), count in product(_KERNELS.items(), sizes.kernel_elements):
        num_bytes = per_element * count
        what = {
            "name": name,
            "family": "stream" if name in _STREAMS else "fused",
            "num_bytes": num_bytes,
        }
        points.append(Point(KernelRecord, what, partial(measure, prepare, count, num_bytes)))
    return [*points, Point(LaunchRecord, {}, partial(_measure_launch, timer))]


def _measure_launch(timer: Timer) -> dict[str, Any]:
    """Measure host seconds of a launch; on a CPU they include the kernel."""
    number, samples = torch.zeros(1, device=timer.device), []
    for _ in range(_NUM_LAUNCH_SAMPLES):
        timer.synchronize()
        start_s = time.perf_counter()
        for _ in range(_NUM_LAUNCHES):
            number.add_(1)
        samples.append((time.perf_counter() - start_s) / _NUM_LAUNCHES)
    timer.synchronize()
    return {"time": summary(timer.ranks.slowest(samples))}


def _take(data: RandomData, count: int, shape: Shape) -> Tensor:
    """A tensor of `count` elements; or zeros, which do not grow when they are added in place."""
    if not shape:
        return data.take(0).new_zeros(_WIDTH)
    return data.take(count // math.prod(shape), *shape)


def _op(op: Callable[..., object], *shapes: Shape) -> Prepare:
    """Prepare a run of an op on inputs of its own."""
    return lambda data, count: partial(op, *(_take(data, count, shape) for shape in shapes))


def _backward(op: Callable[..., Tensor], *shapes: Shape) -> Prepare:
    """Prepare the backward pass of an op by autograd, after one forward pass."""

    def prepare(data: RandomData, count: int) -> Run:
        """Run the op forward and return its backward pass."""
        operands = [_take(data, count, shape).detach().requires_grad_() for shape in shapes]
        with torch.enable_grad():
            output = op(*operands)
        gradient = data.take(*output.shape)
        return partial(torch.autograd.grad, output, operands, gradient, retain_graph=True)

    return prepare


def _layer_norm(values: Tensor, weight: Tensor) -> Tensor:
    return functional.layer_norm(values, (_WIDTH,), weight, weight)


def _rotate(values: Tensor) -> Tensor:
    return rotated(values.unsqueeze(1), _HEAD_SIZE)


def _bias_gelu(values: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(values.add_(bias), approximate="tanh")


def _copy(data: RandomData, count: int) -> Run:
    values = _take(data, count, _ROWS)
    return partial(torch.empty_like(values).copy_, values)


def _adam_step(data: RandomData, count: int) -> Run:
    with torch.enable_grad():
        parameter = nn.Parameter(_take(data, count, _ROWS).clone())
        return MixedPrecisionAdam([parameter], learning_rate=1e-4).step


_softmax = partial(causal_softmax, scale=0.125)
_gelu = partial(functional.gelu, approximate="tanh")
_KERNELS: dict[str, tuple[int, Prepare]] = {
    "layer norm": (4, _op(_layer_norm, _ROWS, _BIAS)),
    "layer norm gradient": (6, _backward(_layer_norm, _ROWS, _BIAS)),
    "RMS norm": (4, _op(rms_norm, _ROWS, _BIAS)),
    "RMS norm gradient": (6, _backward(rms_norm, _ROWS, _BIAS)),
    "SwiGLU": (3, _op(swiglu, _WIDE_ROWS)),
    "SwiGLU gradient": (5, _backward(swiglu, _WIDE_ROWS)),
    "rotation": (4, _op(_rotate, _ROWS)),
    "dropout and residual": (7, _op(bias_dropout_residual, _ROWS, _BIAS, _ROWS)),
    "dropout gradient": (5, _backward(dropout, _ROWS)),
    "bias and GeLU": (4, _op(_bias_gelu, _ROWS, _BIAS)),
    "GeLU gradient": (6, _backward(_gelu, _ROWS)),
    "softmax": (3, _op(_softmax, _SCORES)),
    "softmax dropout": (5, _op(dropout, _SCORES)),
    "softmax gradient": (4, _backward(_softmax, _SCORES)),
    "copy": (4, _copy),
    "Adam step": (38, _adam_step),
}
"""Bytes per element of each kernel, and its run; elements of SwiGLU are gate and values, and its
output has half as many. Adam moves 28 bytes of states and gradient, 6 to write the 16-bit weights,
and 4 to zero the gradient."""
_STREAMS = "copy", "Adam step"


def attention_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Points of every number of heads and every length; heads are as wide as the first layer's."""
    head_size = sizes.layers[0].hidden // sizes.layers[0].heads

    def measure(heads: int, length: int) -> dict[str, Any]:
        """Time fused attention forward and backward."""
        data = random_data(timer.device, torch.bfloat16)
        num_bytes = _NUM_ATTENTION_TENSORS * torch.bfloat16.itemsize * heads * length * head_size
        runs = [
            _attention_runs(heads, length, head_size, data) for _ in range(timer.copies(num_bytes))
        ]
        forward, backward = (timer.time(way) for way in zip(*runs, strict=True))
        return {"forward": forward, "backward": backward}

    return [
        Point(
            AttentionRecord,
            {"heads": heads, "seq_length": length, "head_size": head_size},
            partial(measure, heads, length),
        )
        for heads, length in product(sizes.attention_heads, sizes.attention_lengths)
    ]


def _attention_runs(heads: int, length: int, head_size: int, data: RandomData) -> tuple[Run, Run]:
    """Forward and backward on Q, K and V that are views of one tensor, as in a layer.

    The times leave out the op that joins the gradients of the three.
    """
    packed = data.take(length, heads, 3, head_size)
    operands = [part.transpose(0, 1).detach().requires_grad_() for part in packed.unbind(2)]
    output = fused_core(*operands)
    gradient = data.take(length, heads, head_size).transpose(0, 1)
    backward = partial(torch.autograd.grad, output, operands, gradient, retain_graph=True)
    return partial(fused_core, *operands), backward
