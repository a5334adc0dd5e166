"""Runs a function as one kernel in torch; and the kernels of Llama layers.

RMS norm, rotary embedding and SwiGLU are one kernel each in Transformer Engine and FlashAttention,
and here too.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

Tensors = tuple[Tensor, ...]
Compute = Callable[..., Tensors]
_EPSILON = 1e-5
_BASE = 10000.0


def kernel(compute: Compute, *inputs: Any) -> Tensors:
    """Run a function of a tensor and further arguments as one kernel.

    On a GPU it is compiled to one. Elsewhere torch runs it op by op, and the tensors between its
    ops do not count as memory.
    """
    if inputs[0].is_cuda:
        return _compiled(compute)(*inputs)
    with _disable_current_modes():
        results = compute(*inputs)
    return tuple(result.view(result.shape) for result in results)


def differentiable(
    forward: Compute,
    backward: Compute,
    *inputs: Tensor,
    constants: tuple[Any, ...] = (),
    keeps_first: bool = True,
) -> Tensor:
    """Run a kernel that has another kernel for its gradients.

    `forward` computes the output, and further tensors to save, from inputs and constants;
    `backward` computes gradients of the first inputs from the output's gradient, the saved tensors
    and the constants. All inputs are saved; the first is not unless it `keeps_first`.
    """
    output: Tensor = _Kernel.apply(forward, backward, constants, keeps_first, *inputs)
    return output


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        compute: Compute,
        gradients: Compute,
        constants: tuple[Any, ...],
        keeps_first: bool,
        *inputs: Tensor,
    ) -> Tensor:
        output, *further = kernel(compute, *inputs, *constants)
        ctx.save_for_backward(*(inputs if keeps_first else inputs[1:]), *further)
        ctx.gradients, ctx.constants, ctx.num_inputs = gradients, constants, len(inputs)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = kernel(ctx.gradients, gradient, *ctx.saved_tensors, *ctx.constants)
        return None, None, None, None, *gradients, *(None,) * (ctx.num_inputs - len(gradients))


@cache
def _compiled(compute: Compute) -> Compute:
    return torch.compile(compute, fullgraph=True, dynamic=True)


class RmsNorm(nn.RMSNorm):
    """A norm with a weight for each channel, in one kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        return rms_norm(x, self.weight)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Norm of the last dimension; saves its input and a number per token."""
    return differentiable(_normed, _norm_gradients, x, weight)


def _normed(x: Tensor, weight: Tensor) -> Tensors:
    scale = (x.float().square().mean(-1) + _EPSILON).rsqrt()
    return (x * scale.unsqueeze(-1)).to(x.dtype) * weight, scale


def _norm_gradients(gradient: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> Tensors:
    scale, scaled = scale.unsqueeze(-1), gradient.float() * weight
    mean = (scaled * x).mean(-1, keepdim=True)
    of_input = scale * (scaled - x * scale.square() * mean)
    of_weight = (gradient * x * scale).flatten(0, -2).sum(0)
    return of_input.to(x.dtype), of_weight.to(weight.dtype)


def rotated(x: Tensor, size: int) -> Tensor:
    """Rotate queries or keys [s, b, heads · size] by their positions; it saves nothing."""
    return differentiable(_turn, _turn_back, x, constants=(size,), keeps_first=False)


def _turn(x: Tensor, size: int, direction: int = 1) -> Tensors:
    positions = torch.arange(x.shape[0], device=x.device)
    frequencies = _BASE ** -(torch.arange(0, size, 2, device=x.device) / size)
    angles = torch.outer(positions, frequencies)
    sine, cosine = direction * angles.sin()[:, None, None], angles.cos()[:, None, None]
    first, second = x.unflatten(-1, (-1, size)).float().chunk(2, -1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    return (turned.flatten(-2).to(x.dtype),)


def _turn_back(gradient: Tensor, size: int) -> Tensors:
    return _turn(gradient, size, direction=-1)


def swiglu(x: Tensor) -> Tensor:
    """SiLU of the first half times the second; saves its input."""
    return differentiable(swiglu_forward, swiglu_backward, x)


def swiglu_forward(x: Tensor) -> Tensors:
    """Multiply the SiLU of the first half by the second half."""
    gate, value = x.chunk(2, -1)
    return (functional.silu(gate) * value,)


def swiglu_backward(gradient: Tensor, x: Tensor) -> Tensors:
    """Return the gradient of the input from that of the output."""
    gate, value = x.chunk(2, -1)
    sigmoid = gate.sigmoid()
    of_gate = gradient * value * sigmoid * (1 + gate * (1 - sigmoid))
    return (torch.cat((of_gate, gradient * gate * sigmoid), -1),)
