"""Mixed-precision Adam as Megatron-LM holds it: 18 bytes a parameter.

16-bit weights, fp32 gradients that microbatches add up in (`main_grad`), and fp32 master weights,
momentum and variance. A step needs no memory of its own, as in apex's `FusedAdam`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BETAS = 0.9, 0.95
"""Megatron-LM's published runs of GPT-3."""
EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class _State:
    """A parameter, and what Adam keeps of it, all of its shape and in fp32."""

    parameter: nn.Parameter
    gradient: Tensor
    master: Tensor
    momentum: Tensor
    variance: Tensor


class MixedPrecisionAdam:
    """Adam for `parameters`, each of which gets a `main_grad` that its gradients are added to."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.num_steps = 0
        self._states = [_state(parameter) for parameter in parameters]

    @property
    def gradients_bytes(self) -> int:
        """Bytes of the fp32 gradients."""
        return sum(state.gradient.nbytes for state in self._states)

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of master weights, momenta and variances."""
        kept = ((s.master, s.momentum, s.variance) for s in self._states)
        return sum(tensor.nbytes for tensors in kept for tensor in tensors)

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights with the gradients added up since the last step; forget these."""
        self.num_steps += 1
        for state in self._states:
            self._update(state)
            state.parameter.copy_(state.master)
            state.gradient.zero_()

    def _update(self, state: _State) -> None:
        first, second = (1 - beta**self.num_steps for beta in BETAS)
        gradient, momentum, variance = state.gradient, state.momentum, state.variance
        momentum.lerp_(gradient, 1 - BETAS[0])
        variance.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        # The gradient is needed no more: the denominator takes its place.
        denominator = torch.sqrt(variance, out=gradient).div_(math.sqrt(second)).add_(EPSILON)
        state.master.addcdiv_(momentum, denominator, value=-self.learning_rate / first)


def _state(parameter: nn.Parameter) -> _State:
    def zeros() -> Tensor:
        return torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)

    state = _State(parameter, zeros(), parameter.detach().float().clone(), zeros(), zeros())
    parameter.main_grad = state.gradient  # type: ignore[attr-defined]
    parameter.register_post_accumulate_grad_hook(_add_to_main)
    return state


def _add_to_main(parameter: Tensor) -> None:
    """What no matrix product has added already: gradients of norms, biases and tables."""
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
        parameter.grad = None
