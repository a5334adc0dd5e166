"""Blocks of Llama layers in torch: grouped queries, SwiGLU, RMS norms, rotary embedding.

They replace the paper's blocks in `TransformerLayer`. Kernels of Transformer Engine and
FlashAttention are one kernel here too (`kernels`). There are neither biases nor dropout. A norm
keeps its reciprocal deviation, an fp32 number for each token, which simtrain does not count.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from calibrate.torch_model.context import Ring, ring_core
from calibrate.torch_model.kernels import Tensors, differentiable
from calibrate.torch_model.parallel import TensorGroup, column_parallel, row_parallel, weight
from calibrate.torch_model.shape import LayerShape

_EPSILON = 1e-5
_BASE = 10000.0


class LlamaAttention(nn.Module):
    """RMS norm, self-attention of groups of queries, projection and residual."""

    def __init__(self, shape: LayerShape, group: TensorGroup, *, selective: bool) -> None:
        super().__init__()
        self.group, self.selective = group, selective
        self.heads, self.groups = shape.local_heads, shape.local_groups
        self.size = shape.head_size
        self.ring = Ring(shape.context) if shape.context > 1 else None
        self.norm = RmsNorm(shape.hidden)
        width = (self.heads + 2 * self.groups) * self.size
        self.query_key_value_weight = weight(width, shape.hidden)
        self.projection_weight = weight(shape.hidden, self.heads * self.size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[s or s/t, b, h] to the same."""
        normed = self.norm(hidden)
        projected = column_parallel(normed, self.query_key_value_weight, self.group)
        shares = [heads * self.size for heads in (self.heads, self.groups, self.groups)]
        query, key, value = projected.split(shares, dim=-1)
        # Transformer Engine copies values that lie apart.
        places = self.ring.positions(len(query), query.device) if self.ring else None
        parts = *(rotated(each, self.size, places) for each in (query, key)), value.contiguous()
        del normed, projected, query, key, value
        heads = [self._split(part) for part in parts]
        del parts
        if self.selective:
            context = checkpoint(self._core, *heads, use_reentrant=False, early_stop=False)
        else:
            context = self._core(*heads)
        del heads
        merged = context.transpose(0, 1).reshape(context.shape[1], hidden.shape[1], -1)
        return row_parallel(merged, self.projection_weight, self.group).add_(hidden)

    def _core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.ring is None:
            return grouped_core(query, key, value)
        return ring_core(query, key, value, self.ring)

    def _split(self, part: Tensor) -> Tensor:
        """[s, b, heads · channels] to a view [b · heads, s, channels]."""
        return part.view(part.shape[0], -1, self.size).transpose(0, 1)


class LlamaMLP(nn.Module):
    """RMS norm, gate and up, SwiGLU, down and residual."""

    def __init__(self, shape: LayerShape, group: TensorGroup) -> None:
        super().__init__()
        inner = shape.ffn // shape.tensor
        self.group = group
        self.norm = RmsNorm(shape.hidden)
        self.expansion_weight = weight(2 * inner, shape.hidden)
        self.contraction_weight = weight(shape.hidden, inner)

    def forward(self, hidden: Tensor) -> Tensor:
        """[s or s/t, b, h] to the same."""
        normed = self.norm(hidden)
        wide = column_parallel(normed, self.expansion_weight, self.group)
        del normed
        activated = swiglu(wide)
        del wide
        return row_parallel(activated, self.contraction_weight, self.group).add_(hidden)


def grouped_core(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention in one kernel; [b · heads, s, channels], of keys and values fewer heads."""
    if query.is_meta:
        without_numbers: Tensor = _MetaCore.apply(query, key, value)
        return without_numbers
    query, key, value = (part.unsqueeze(0) for part in (query, key, value))
    context = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    return context.squeeze(0)


class RmsNorm(nn.Module):
    """A norm with a weight for each of `hidden` channels."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        return rms_norm(x, self.weight)


class _MetaCore(torch.autograd.Function):
    """A fused kernel on the meta device, where torch has none, with its output and kept tensors.

    It keeps its operands, its output and the log-sum-exp of each row.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = _as_the_projection_reads(query)
        log_sum_exp = query.new_empty(query.shape[:2], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, log_sum_exp)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensors:
        return tuple(_as_the_projection_reads(part) for part in ctx.saved_tensors[:3])


def _as_the_projection_reads(heads: Tensor) -> Tensor:
    """A new [b · heads, s, channels] that lies in memory with the tokens first."""
    size, tokens, channels = heads.shape
    return heads.new_empty(tokens, size, channels).transpose(0, 1)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """The norm of the last dimension; keeps its input and a number for each token."""
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


def rotated(x: Tensor, size: int, places: Tensor | None = None) -> Tensor:
    """Queries or keys [s, b, heads · size], rotated by their positions; keeps only these.

    `places` are the positions [s]; None for 0, 1, 2, ...
    """
    return differentiable(_rotated, _rotated_back, x, places, constants=(size,), keeps_first=False)


def _rotated(x: Tensor, places: Tensor | None, size: int) -> Tensors:
    return _turned(x, size, 1, places)


def _rotated_back(gradient: Tensor, places: Tensor | None, size: int) -> Tensors:
    return _turned(gradient, size, -1, places)


def _turned(x: Tensor, size: int, direction: int, places: Tensor | None) -> Tensors:
    if places is None:
        places = torch.arange(x.shape[0], device=x.device)
    frequencies = _BASE ** -(torch.arange(0, size, 2, device=x.device) / size)
    angles = torch.outer(places, frequencies)
    sine, cosine = direction * angles.sin()[:, None, None], angles.cos()[:, None, None]
    first, second = x.unflatten(-1, (-1, size)).float().chunk(2, -1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    return (turned.flatten(-2).to(x.dtype),)


def swiglu(x: Tensor) -> Tensor:
    """Silu of the first half times the second; keeps its input."""
    return differentiable(_gated, _gate_gradient, x)


def _gated(x: Tensor) -> Tensors:
    gate, value = x.chunk(2, -1)
    return (functional.silu(gate) * value,)


def _gate_gradient(gradient: Tensor, x: Tensor) -> Tensors:
    gate, value = x.chunk(2, -1)
    sigmoid = gate.sigmoid()
    of_gate = gradient * value * sigmoid * (1 + gate * (1 - sigmoid))
    return (torch.cat((of_gate, gradient * gate * sigmoid), -1),)
