"""A transformer layer in torch, as Megatron-LM runs it: the paper's (Figures 2 to 6), or Llama's.

Activations are [s, b, h], or [s/t, b, h] outside the parallel linears under sequence parallelism.
The paper's layer saves the tensors that the paper counts, and the mean and reciprocal deviation of
each token in layer norms. Biases and residuals are added in place: torch's separate kernels then
hold no more than Megatron-LM's fused ones. Llama's layer has no biases and no dropout; a norm saves
its reciprocal deviation, an fp32 number per token, which simtrain does not count.

All ranks of a tensor-parallel group must start from the same random seed: the dropout masks of
tokens that they share must agree, and each rank draws as many numbers as the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from functools import partial

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from calibrate.torch_model.experts import ExpertsMLP
from calibrate.torch_model.kernels import RmsNorm, Tensors, rotated, swiglu
from calibrate.torch_model.parallel import TensorGroup, column_parallel, row_parallel, weight
from calibrate.torch_model.shape import LayerShape

# `checkpoint` imports it at its first call. Imported while a process group is open, it would keep
# the group and its threads alive past `destroy_process_group`, and a rank may abort as it exits.


DROPOUT = 0.1
"""Probability of dropping; Megatron-LM's default for attention and for hidden states."""
DIVIDED_DIMENSION = {
    "attention.query_key_value_weight": 0,
    "attention.query_key_value_bias": 0,
    "attention.projection_weight": 1,
    "mlp.expansion_weight": 0,
    "mlp.expansion_bias": 0,
    "mlp.contraction_weight": 1,
    "mlp.experts_up_weight": 0,
    "mlp.experts_down_weight": 0,
}
"""The dimension of a parameter that ranks divide; other parameters are whole on each rank."""


class Recompute(StrEnum):
    """Recompute in the backward pass: nothing, the attention core, or the layer."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class TorchLayer(nn.Sequential):
    """One layer on one rank: [s or s/t, b, h] to the same shape.

    Raises ValueError if `group` does not divide the layer as `shape` does.
    """

    def __init__(
        self, shape: LayerShape, recompute: Recompute, group: TensorGroup | None = None
    ) -> None:
        super().__init__()
        self.group, self.recompute = group or TensorGroup(), recompute
        of_shape, of_group = (
            f"t={size}, sequence_parallel={sequence}"
            for size, sequence in (
                (shape.tensor, shape.sequence_parallel),
                (self.group.size, self.group.sequence_parallel),
            )
        )
        if of_shape != of_group:
            raise ValueError(f"the layer is divided for {of_shape}, but its group has {of_group}")
        self.attention = Attention(shape, self.group, selective=recompute is Recompute.SELECTIVE)
        self.mlp = (ExpertsMLP if shape.experts else MLP)(shape, self.group)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the layer's output; under full recompute only `hidden` is saved."""
        blocks: Callable[[Tensor], Tensor] = super().forward
        return checkpointed(blocks, hidden) if self.recompute is Recompute.FULL else blocks(hidden)


class Attention(nn.Module):
    """Norm, self-attention, projection, dropout if any, and residual (Figure 2, left)."""

    def __init__(self, shape: LayerShape, group: TensorGroup, *, selective: bool) -> None:
        super().__init__()
        self.group, self.selective, self.size = group, selective, shape.head_size
        heads = shape.local_heads, shape.local_groups, shape.local_groups
        self.widths = [number * self.size for number in heads]
        plain: Callable[..., Tensor] = fused_core if shape.fused_attention else core
        self.core = partial(plain, drops=False) if shape.is_llama else plain
        self.norm = norm_of(shape)
        self.query_key_value_weight = weight(sum(self.widths), shape.hidden)
        self.query_key_value_bias = _bias_of(shape, sum(self.widths))
        self.projection_weight = weight(shape.hidden, self.widths[0])
        self.projection_bias = _bias_of(shape, shape.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """[s or s/t, b, h] to the same; selective recompute saves only Q, K and V of the core."""
        product = column_parallel(self.norm(hidden), self.query_key_value_weight, self.group)
        heads = self._heads(product)
        del product
        context = checkpointed(self.core, *heads) if self.selective else self.core(*heads)
        del heads
        merged = context.transpose(0, 1).reshape(context.shape[1], hidden.shape[1], -1)
        output = row_parallel(merged, self.projection_weight, self.group)
        return _add_residual(output, self.projection_bias, hidden)

    def _heads(self, product: Tensor) -> Tensors:
        """Split [s, b, width] into queries, keys and values, each [b · heads, s, channels].

        The paper's are three views of one tensor. Llama's are new tensors: queries and keys are
        rotated, and Transformer Engine copies values that lie apart.
        """
        if self.query_key_value_bias is not None:
            biased = product.add_(self.query_key_value_bias)
            parts = biased.view(len(biased), -1, 3, self.size).unbind(2)
        else:
            query, key, value = product.split(self.widths, dim=-1)
            turned = (rotated(part, self.size) for part in (query, key))
            whole = *turned, value.contiguous()
            parts = tuple(part.view(len(part), -1, self.size) for part in whole)
        return tuple(part.transpose(0, 1) for part in parts)


class MLP(nn.Module):
    """Norm, expansion, GeLU or SwiGLU, contraction, dropout if any, residual (Figure 2, right)."""

    def __init__(self, shape: LayerShape, group: TensorGroup) -> None:
        super().__init__()
        inner = shape.ffn // shape.tensor
        wide = 2 * inner if shape.is_llama else inner
        self.group = group
        self.norm = norm_of(shape)
        self.expansion_weight = weight(wide, shape.hidden)
        self.expansion_bias = _bias_of(shape, wide)
        self.contraction_weight = weight(shape.hidden, inner)
        self.contraction_bias = _bias_of(shape, shape.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """[s or s/t, b, h] to the same."""
        wide = column_parallel(self.norm(hidden), self.expansion_weight, self.group)
        if self.expansion_bias is None:
            activated = swiglu(wide)
        else:
            activated = functional.gelu(wide.add_(self.expansion_bias), approximate="tanh")
        del wide
        narrow = row_parallel(activated, self.contraction_weight, self.group)
        return _add_residual(narrow, self.contraction_bias, hidden)


def norm_of(shape: LayerShape) -> nn.Module:
    """Build the norm of a layer: RMS norm for Llama's, layer norm for the paper's."""
    return RmsNorm(shape.hidden) if shape.is_llama else nn.LayerNorm(shape.hidden)


def core(query: Tensor, key: Tensor, value: Tensor, *, drops: bool = True) -> Tensor:
    """QKᵀ, causal softmax, dropout, attention over V (Figure 3); all [b·a/t, s, h/a].

    Keys and values of fewer heads are repeated, as in Megatron-LM's DotProductAttention.
    """
    if len(key) < len(query):
        key, value = (part.repeat_interleave(len(query) // len(key), 0) for part in (key, value))
    scores = torch.bmm(query, key.transpose(1, 2))
    weights = causal_softmax(scores, 1 / math.sqrt(query.shape[-1]))
    return torch.bmm(dropout(weights) if drops else weights, value)


def fused_core(query: Tensor, key: Tensor, value: Tensor, *, drops: bool = True) -> Tensor:
    """Causal attention in one kernel, which saves a log-sum-exp per row and no scores.

    All are [b · heads, s, channels]; keys and values may have fewer heads. Heads of all sequences
    count as heads of one, which puts the output in memory in the order that the projection reads. A
    CPU's kernel (FlashAttention), also the one on the meta device, has no dropout.
    """
    heads = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
    if not query.is_cuda:
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output: Tensor = fused(*heads, 0.0, True)[0]
        return output.squeeze(0)
    rate, is_grouped = DROPOUT if drops else 0.0, query.shape[0] != key.shape[0]
    return functional.scaled_dot_product_attention(
        *heads, dropout_p=rate, is_causal=True, enable_gqa=is_grouped
    ).squeeze(0)


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """Softmax of the scaled scores [n, s, s] up to the diagonal; it saves its output only.

    The triangular mask is added, because autograd would save one that is filled in.
    """
    future = scores.new_full(scores.shape[1:], -math.inf).triu_(1)
    return torch.softmax((scores * scale).add_(future), dim=-1)


def dropout(values: Tensor) -> Tensor:
    """Dropout that saves a mask of one byte per element.

    On a CPU `torch.nn.functional.dropout` would save its input and a mask of the input's type.
    """
    return torch.native_dropout(values, DROPOUT, True)[0]


def bias_dropout_residual(values: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """residual + dropout(values + bias), [s or s/t, b, h]."""
    return dropout(values.add_(bias)).add_(residual)


def _add_residual(values: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """The end of a block: with bias and dropout (the paper's), or without both (Llama's)."""
    if bias is None:
        return values.add_(residual)
    return bias_dropout_residual(values, bias, residual)


def checkpointed(block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Run `block` and save only its inputs; it recomputes all of it, as Megatron-LM does."""
    output: Tensor = checkpoint(block, *inputs, use_reentrant=False, early_stop=False)
    return output


def _bias_of(shape: LayerShape, width: int) -> nn.Parameter | None:
    return None if shape.is_llama else nn.Parameter(torch.zeros(width))
