"""Times kernels of a layer and of the optimizer, fused attention, launches, and the host's work.

Each benchmark runs an op of `torch_model`, which may be several kernels of torch. Its bytes are
those of one fused kernel, as in `simtrain.workload`, so that the rate is that of a layer. The host
of a GPU copies over the link and steps Adam for an offloaded optimizer; all ranks do so at the same
time, and each gets its share of the host.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrate.benchmarks.products import DTYPES
from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import RandomData, Run, Timer, random_data, summary
from calibrate.records.file import MeasurementPoint
from calibrate.records.schema import AttentionRecord, HostRecord, KernelRecord, LaunchRecord
from calibrate.torch_model.gpt import cross_entropy
from calibrate.torch_model.kernels import rms_norm, rotated, swiglu
from calibrate.torch_model.layer import (
    bias_dropout_residual,
    causal_softmax,
    dropout,
    fused_core,
)
from calibrate.torch_model.training import MixedPrecisionAdam, fused_adam
from simtrain.base.process import num_processors

_WIDTH = 1024
"""Width of norms and biases, below every measured number of elements."""
_HEAD_SIZE = 64
Shape = tuple[int, ...]
"""All dimensions of an input but the first."""
_ROWS: Shape = (_WIDTH,)
_WIDE_ROWS: Shape = (2 * _WIDTH,)
_SCORES: Shape = (256, 256)
_LOGITS: Shape = (1, _WIDTH)
_BIAS: Shape = ()
_NUM_LAUNCHES = 1000
_NUM_LAUNCH_SAMPLES = 20
Prepare = Callable[[RandomData, int], Run]
"""Makes a run of a kernel over a number of elements."""
Moved = Callable[[int], float]
"""Bytes that a kernel moves for each element, of the bytes of an element."""
_NUM_ATTENTION_TENSORS = 8
"""Query, key, value, output, and the gradient of each."""
_ADAM_BYTES = 28
"""Bytes of a parameter: gradient, weight and moments are read, weight and moments written."""


def kernel_points(sizes: Sizes, timer: Timer) -> list[MeasurementPoint]:
    """Points of every kernel and number of elements, and of the launch of a kernel."""
    dtype = DTYPES[sizes.compute]

    def measure(prepare: Prepare, count: int, num_bytes: int) -> dict[str, Any]:
        data = random_data(timer.device, dtype)
        with torch.no_grad():
            runs = [prepare(data, count) for _ in range(timer.copies(num_bytes))]
            return {"time": timer.time(runs)}

    points = [MeasurementPoint(LaunchRecord, {}, partial(_measure_launch, timer))]
    # Every kernel of one size before the next size: a measurement that ends early has them all.
    for count, (name, (moved, prepare)) in product(sizes.kernel_elements, _KERNELS.items()):
        num_bytes = round(moved(dtype.itemsize) * count)
        family = "stream" if name in _STREAMS else "fused"
        what = {"name": name, "family": family, "num_bytes": num_bytes}
        points.append(
            MeasurementPoint(KernelRecord, what, partial(measure, prepare, count, num_bytes))
        )
    return points


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
    return lambda data, count: partial(op, *(_take(data, count, shape) for shape in shapes))


def _backward(op: Callable[..., Tensor], *shapes: Shape) -> Prepare:
    """Prepare the backward pass of an op by autograd, after one forward pass."""

    def prepare(data: RandomData, count: int) -> Run:
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


def _loss(logits: Tensor) -> Tensor:
    return cross_entropy(logits, logits.new_zeros(logits.shape[:-1], dtype=torch.long))


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


def _moves(elements: float, further_bytes: int = 0) -> Moved:
    return lambda element_bytes: elements * element_bytes + further_bytes


def _adam_moves(element_bytes: int) -> float:
    """States and gradient, zeros in the gradient, and the cast of the master to a 16-bit weight."""
    cast = 4 + element_bytes if element_bytes < 4 else 0
    return _ADAM_BYTES + 4 + cast


def _loss_moves(element_bytes: int) -> float:
    """Three passes over fp32 logits read and write, two only read; 16-bit logits are cast."""
    cast = 4 + element_bytes if element_bytes < 4 else 0
    return 3 * 8 + 2 * 4 + cast


_KERNELS: dict[str, tuple[Moved, Prepare]] = {
    "layer norm": (_moves(2), _op(_layer_norm, _ROWS, _BIAS)),
    "layer norm gradient": (_moves(3), _backward(_layer_norm, _ROWS, _BIAS)),
    "RMS norm": (_moves(2), _op(rms_norm, _ROWS, _BIAS)),
    "RMS norm gradient": (_moves(3), _backward(rms_norm, _ROWS, _BIAS)),
    "SwiGLU": (_moves(1.5), _op(swiglu, _WIDE_ROWS)),
    "SwiGLU gradient": (_moves(2.5), _backward(swiglu, _WIDE_ROWS)),
    "rotation": (_moves(2), _op(_rotate, _ROWS)),
    "dropout and residual": (_moves(3, 1), _op(bias_dropout_residual, _ROWS, _BIAS, _ROWS)),
    "dropout gradient": (_moves(2, 1), _backward(dropout, _ROWS)),
    "bias and GeLU": (_moves(2), _op(_bias_gelu, _ROWS, _BIAS)),
    "GeLU gradient": (_moves(3), _backward(_gelu, _ROWS)),
    "softmax": (_moves(1.5), _op(_softmax, _SCORES)),
    "softmax dropout": (_moves(2, 1), _op(dropout, _SCORES)),
    "softmax gradient": (_moves(2), _backward(_softmax, _SCORES)),
    "cross entropy": (_loss_moves, _op(_loss, _LOGITS)),
    "copy": (_moves(2), _copy),
    "Adam step": (_adam_moves, _adam_step),
}
"""Bytes per element of each kernel, and its run; elements of SwiGLU are gate and values, and its
output has half as many. A causal softmax reads half of its scores."""
_STREAMS = "copy", "Adam step"


def attention_points(sizes: Sizes, timer: Timer) -> list[MeasurementPoint]:
    """Points of every number of heads and every length; none in fp32.

    Heads are as wide as the first layer's.
    """
    if not sizes.has_fused_attention:
        return []
    head_size, dtype = sizes.layers[0].hidden // sizes.layers[0].heads, DTYPES[sizes.compute]

    def measure(heads: int, seq_length: int, head_size: int) -> dict[str, Any]:
        data, elements = random_data(timer.device, dtype), heads * seq_length * head_size
        copies = timer.copies(_NUM_ATTENTION_TENSORS * dtype.itemsize * elements)
        runs = [_attention_runs(heads, seq_length, head_size, data) for _ in range(copies)]
        forward, backward = (timer.time(way) for way in zip(*runs, strict=True))
        return {"forward": forward, "backward": backward}

    points = []
    for heads, length in product(sizes.attention_heads, sizes.attention_lengths):
        what = {"heads": heads, "seq_length": length, "head_size": head_size}
        points.append(MeasurementPoint(AttentionRecord, what, partial(measure, **what)))
    return points


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


def host_points(sizes: Sizes, timer: Timer) -> list[MeasurementPoint]:
    """Points of copies both ways and Adam, of each size; none on a CPU, which is its own host."""
    if timer.device != "cuda":
        return []

    def measure(what: str, num_bytes: int) -> dict[str, Any]:
        if what != "adam":
            return {"time": timer.time(copy_runs(what, num_bytes, timer))}
        host = replace(timer, device="cpu")
        before = torch.get_num_threads()  # torchrun gives each process one thread
        torch.set_num_threads(max(num_processors() // timer.ranks.per_node, 1))
        try:
            return {"time": host.time(adam_runs(num_bytes, host))}
        finally:
            torch.set_num_threads(before)

    points = []
    for what, unit in (("to_device", 1), ("to_host", 1), ("adam", _ADAM_BYTES)):
        for size in (max(num_bytes // unit, 1) * unit for num_bytes in sizes.host_bytes):
            named = {"what": what, "num_bytes": size}
            points.append(MeasurementPoint(HostRecord, named, partial(measure, what, size)))
    return points


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
