"""Mixed-precision Adam with the states of Megatron-LM: 18 bytes per parameter.

16-bit weights, fp32 gradients that accumulate over microbatches (`main_grad`), and fp32 master
weights, momentum and variance. A step is torch's fused Adam, which like apex's needs no memory.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

BETAS = 0.9, 0.95
"""Megatron-LM's published runs of GPT-3."""
EPSILON = 1e-8


class MixedPrecisionAdam:
    """Adam for parameters whose gradients accumulate in their `main_grad`.

    `gradients` lists the `main_grad` of each parameter, in order.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.num_steps = 0
        self._parameters: list[Tensor] = list(parameters)
        self.gradients = [_zeros(parameter) for parameter in self._parameters]
        # In fp32 training the weights are their own masters.
        self._masters = [
            parameter.detach() if parameter.dtype == torch.float32 else parameter.detach().float()
            for parameter in self._parameters
        ]
        self._momenta = [_zeros(parameter) for parameter in self._parameters]
        self._variances = [_zeros(parameter) for parameter in self._parameters]
        for parameter, gradient in zip(self._parameters, self.gradients, strict=True):
            parameter.main_grad = gradient  # type: ignore[attr-defined]
            parameter.register_post_accumulate_grad_hook(_add_to_main)

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights with the accumulated gradients, and zero the gradients."""
        self.num_steps += 1
        states = self._masters, self.gradients, self._momenta, self._variances
        fused_adam(*states, self.num_steps, self.learning_rate)
        if any(weight.dtype != torch.float32 for weight in self._parameters):
            torch._foreach_copy_(self._parameters, self._masters)
        torch._foreach_zero_(self.gradients)


@torch.no_grad()
def fused_adam(
    masters: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    variances: list[Tensor],
    num_steps: int,
    learning_rate: float,
) -> None:
    """Update all master weights in fp32; this is step `num_steps` of training, from 1."""
    step = torch.full((), float(num_steps), device=masters[0].device)
    torch._fused_adam_(
        *(masters, gradients, momenta, variances, [], [step] * len(masters)),
        lr=learning_rate,
        beta1=BETAS[0],
        beta2=BETAS[1],
        weight_decay=0.0,
        eps=EPSILON,
        amsgrad=False,
        maximize=False,
    )


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)


def _add_to_main(parameter: Tensor) -> None:
    """Add gradients of norms, biases and tables; those of products are already added."""
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
        parameter.grad = None
