"""Times the memory-bound kernels of a layer and of the optimizer, and launches.

Each benchmark runs an op of `torch_model`, which may be several kernels of torch. Its bytes are
those of one fused kernel, as in `simtrain.workload`, so that the rate is that of a layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import RandomData, Run, Timer, random_data, summary
from calibrate.records.file import Point
from calibrate.records.schema import KernelRecord, LaunchRecord
from calibrate.torch_model.adam import MixedPrecisionAdam
from calibrate.torch_model.layer import DROPOUT, bias_dropout_residual, causal_softmax, dropout
from calibrate.torch_model.llama_kernels import rms_norm, rotated, swiglu

_WIDTH = 1024
"""Width of norms and biases, below every measured number of elements."""
_HEAD_SIZE = 64
_SEQ_LENGTH = 256
_SCALE = 0.125
_NUM_LAUNCHES = 1000
_NUM_LAUNCH_SAMPLES = 20
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that moves `bytes_per_element`; `prepare` makes a run of so many elements."""

    name: str
    family: Literal["fused", "stream"]
    bytes_per_element: int
    prepare: Callable[[RandomData, int], Run]


def kernel_points(sizes: Sizes, timer: Timer) -> list[Point]:
    """Points of every kernel and number of elements, and of the launch of a kernel."""
    points = []
    for kernel, count in product(_KERNELS, sizes.kernel_elements):
        num_bytes = kernel.bytes_per_element * count
        what = {"name": kernel.name, "family": kernel.family, "num_bytes": num_bytes}
        points.append(Point(KernelRecord, what, partial(_measure, kernel, count, timer)))
    return [*points, Point(LaunchRecord, {}, partial(_measure_launch, timer))]


def _measure(kernel: Kernel, count: int, timer: Timer) -> dict[str, Any]:
    data = random_data(timer.device, torch.bfloat16)
    copies = timer.copies(kernel.bytes_per_element * count)
    with torch.no_grad():
        return {"time": timer.time([kernel.prepare(data, count) for _ in range(copies)])}


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


def _rows(data: RandomData, count: int) -> Tensor:
    return data.take(count // _WIDTH, _WIDTH)


def _scores(data: RandomData, count: int) -> Tensor:
    return data.take(count // _SEQ_LENGTH**2, _SEQ_LENGTH, _SEQ_LENGTH)


def _bias(values: Tensor) -> Tensor:
    """Zeros, so that values do not grow when they are added in place."""
    return values.new_zeros(_WIDTH)


def _layer_norm(data: RandomData, count: int) -> Run:
    values = _rows(data, count)
    return partial(functional.layer_norm, values, (_WIDTH,), _bias(values), _bias(values))


def _layer_norm_gradient(data: RandomData, count: int) -> Run:
    gradient, values = _rows(data, count), _rows(data, count)
    weight = _bias(values)
    _, mean, deviation = aten.native_layer_norm(values, (_WIDTH,), weight, weight, 1e-5)
    return partial(
        aten.native_layer_norm_backward,
        *(gradient, values, (_WIDTH,), mean, deviation, weight, weight),
        (True, True, True),
    )


def _rms_norm(data: RandomData, count: int) -> Run:
    values = _rows(data, count)
    return partial(rms_norm, values, _bias(values))


def _rms_norm_gradient(data: RandomData, count: int) -> Run:
    values = _rows(data, count).detach().requires_grad_()
    weight = _bias(values).requires_grad_()
    return _gradients(lambda: rms_norm(values, weight), (values, weight), _rows(data, count))


def _swiglu(data: RandomData, count: int) -> Run:
    return partial(swiglu, data.take(count // (2 * _WIDTH), 2 * _WIDTH))


def _swiglu_gradient(data: RandomData, count: int) -> Run:
    rows = count // (2 * _WIDTH)
    values = data.take(rows, 2 * _WIDTH).detach().requires_grad_()
    return _gradients(lambda: swiglu(values), (values,), data.take(rows, _WIDTH))


def _rotation(data: RandomData, count: int) -> Run:
    return partial(rotated, _rows(data, count).unsqueeze(1), _HEAD_SIZE)


def _gradients(forward: Callable[[], Tensor], inputs: Sequence[Tensor], gradient: Tensor) -> Run:
    """The backward pass of a kernel, after one forward pass."""
    with torch.enable_grad():
        output = forward()
    return partial(torch.autograd.grad, output, inputs, gradient, retain_graph=True)


def _dropout_residual(data: RandomData, count: int) -> Run:
    values, residual = _rows(data, count), _rows(data, count)
    return partial(bias_dropout_residual, values, _bias(values), residual)


def _dropout_gradient(data: RandomData, count: int) -> Run:
    gradient = _rows(data, count)
    _, mask = torch.native_dropout(gradient, DROPOUT, True)
    return partial(aten.native_dropout_backward, gradient, mask, 1 / (1 - DROPOUT))


def _bias_gelu(data: RandomData, count: int) -> Run:
    values = _rows(data, count)
    bias = _bias(values)
    return lambda: functional.gelu(values.add_(bias), approximate="tanh")


def _gelu_gradient(data: RandomData, count: int) -> Run:
    gradient, values = _rows(data, count), _rows(data, count)
    return partial(aten.gelu_backward, gradient, values, approximate="tanh")


def _softmax(data: RandomData, count: int) -> Run:
    return partial(causal_softmax, _scores(data, count), _SCALE)


def _softmax_dropout(data: RandomData, count: int) -> Run:
    return partial(dropout, _scores(data, count))


def _softmax_gradient(data: RandomData, count: int) -> Run:
    gradient, output = _scores(data, count), torch.softmax(_scores(data, count), -1)
    return lambda: aten._softmax_backward_data(gradient, output, -1, output.dtype).mul_(_SCALE)


def _copy(data: RandomData, count: int) -> Run:
    values = _rows(data, count)
    return partial(torch.empty_like(values).copy_, values)


def _adam_step(data: RandomData, count: int) -> Run:
    with torch.enable_grad():
        parameter = nn.Parameter(_rows(data, count).clone())
        return MixedPrecisionAdam([parameter], learning_rate=1e-4).step


_KERNELS: Sequence[Kernel] = (
    Kernel("layer norm", "fused", 4, _layer_norm),
    Kernel("layer norm gradient", "fused", 6, _layer_norm_gradient),
    Kernel("RMS norm", "fused", 4, _rms_norm),
    Kernel("RMS norm gradient", "fused", 6, _rms_norm_gradient),
    Kernel("SwiGLU", "fused", 3, _swiglu),
    Kernel("SwiGLU gradient", "fused", 5, _swiglu_gradient),
    Kernel("rotation", "fused", 4, _rotation),
    Kernel("dropout and residual", "fused", 7, _dropout_residual),
    Kernel("dropout gradient", "fused", 5, _dropout_gradient),
    Kernel("bias and GeLU", "fused", 4, _bias_gelu),
    Kernel("GeLU gradient", "fused", 6, _gelu_gradient),
    Kernel("softmax", "fused", 3, _softmax),
    Kernel("softmax dropout", "fused", 5, _softmax_dropout),
    Kernel("softmax gradient", "fused", 4, _softmax_gradient),
    Kernel("copy", "stream", 4, _copy),
    Kernel("Adam step", "stream", 38, _adam_step),
)
"""The elements of SwiGLU are gate and values; its output has half as many. Adam moves 28 bytes of
states and gradient, 6 to write the 16-bit weights, and 4 to zero the gradient.
"""
