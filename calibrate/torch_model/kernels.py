"""Runs a function as one kernel in torch, as training frameworks do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes

Tensors = tuple[Tensor, ...]
Compute = Callable[..., Tensors]


def kernel(compute: Compute, *given: Any) -> Tensors:
    """Run a function of a tensor and further arguments as one kernel.

    On a GPU it is compiled to one. Elsewhere torch runs it op by op, and the tensors between its
    ops do not count as memory.
    """
    if given[0].is_cuda:
        return _compiled(compute)(*given)
    with _disable_current_modes():
        results = compute(*given)
    return tuple(result.view(result.shape) for result in results)


def differentiable(
    forward: Compute,
    backward: Compute,
    *inputs: Tensor | None,
    constants: tuple[Any, ...] = (),
    keeps_first: bool = True,
) -> Tensor:
    """Run a kernel that has another kernel for its gradients.

    Args:
        forward: computes the output, and further tensors to save, from inputs and constants.
        backward: computes gradients of the first inputs from the output's gradient, the saved
            tensors and the constants; the other inputs have no gradient.
        inputs: tensors, all of them saved for the backward pass.
        constants: further arguments of both.
        keeps_first: False if the backward pass does not need the first input saved.
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
        *inputs: Tensor | None,
    ) -> Tensor:
        output, *further = kernel(compute, *inputs, *constants)
        ctx.save_for_backward(*(inputs if keeps_first else inputs[1:]), *further)
        ctx.gradients, ctx.constants, ctx.num_inputs = gradients, constants, len(inputs)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = kernel(ctx.gradients, gradient, *ctx.saved_tensors, *ctx.constants)
        return None, None, None, None, *found, *(None,) * (ctx.num_inputs - len(found))


@cache
def _compiled(compute: Compute) -> Compute:
    return torch.compile(compute, fullgraph=True, dynamic=True)
