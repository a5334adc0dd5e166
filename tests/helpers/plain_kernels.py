"""Kernels of a Llama layer, written as in a textbook."""

import torch
from torch import Tensor
from torch.nn import functional


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-5)


def plain_rotation(x: Tensor) -> Tensor:
    """Rotate pairs of channels, as complex numbers, by position · base^(-2i/d)."""
    first, second = x.unflatten(-1, (-1, 8)).chunk(2, -1)
    frequencies = 10000.0 ** (-torch.arange(4, dtype=x.dtype) / 4)
    turn = torch.polar(torch.ones(6, 4), torch.outer(torch.arange(6.0), frequencies.float()))
    turned = torch.complex(first, second) * turn.to(torch.complex128)[:, None, None]
    return torch.cat((turned.real, turned.imag), -1).flatten(-2)


def plain_swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return functional.silu(gate) * value
