"""The paper's transformer layer in torch, as Megatron-LM runs it (Figures 2 to 6).

Activations are [s, b, h], or [s/t, b, h] outside the parallel linears under sequence
parallelism. The layer keeps the tensors that the paper counts for its backward pass, and the mean
and reciprocal deviation of each token in layer norms. Biases and residuals are added in place, so
that torch's separate kernels hold no more than Megatron-LM's fused ones.

All ranks of a tensor-parallel group must start from the same random seed: where they hold the
same tokens their dropout masks must agree, and each rank draws as many numbers as the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import torch

# `checkpoint` imports it at its first call. Imported while a process group is open, it would keep
# the group and its threads alive past `destroy_process_group`, and a rank may abort as it exits.
import torch._dynamo
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from calibrate.torch_model.experts import ExpertsMLP
from calibrate.torch_model.llama import LlamaAttention, LlamaMLP
from calibrate.torch_model.parallel import TensorGroup, column_parallel, row_parallel, weight
from calibrate.torch_model.shape import LayerShape

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


class TransformerLayer(nn.Module):
    """One layer on one rank: [s or s/t, b, h] to the same shape.

    Raises ValueError if `group` does not divide the layer as `shape` does.
    """

    def __init__(
        self,
        shape: LayerShape,
        recompute: Recompute,
        group: TensorGroup | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.group = group or TensorGroup()
        _check_group(shape, self.group)
        self.recompute = recompute
        selective = recompute is Recompute.SELECTIVE
        with torch.device(device):
            attention = LlamaAttention if shape.is_llama else Attention
            self.attention = attention(shape, self.group, selective=selective)
            self.mlp = _mlp(shape)(shape, self.group)
        self.to(dtype=dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """The layer's output; under full recompute only `hidden` is kept."""
        if self.recompute is Recompute.FULL:
            return checkpointed(self._blocks, hidden)
        return self._blocks(hidden)

    def _blocks(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.mlp(self.attention(hidden))
        return output


class Attention(nn.Module):
    """Layer norm, self-attention, projection, dropout and residual (Figure 2, left)."""

    def __init__(self, shape: LayerShape, group: TensorGroup, *, selective: bool) -> None:
        super().__init__()
        inner = shape.hidden // shape.tensor
        self.group, self.selective = group, selective
        self.local_heads, self.head_size = shape.local_heads, shape.head_size
        self.core = fused_core if shape.fused_attention else core
        self.norm = nn.LayerNorm(shape.hidden)
        self.query_key_value_weight = weight(3 * inner, shape.hidden)
        self.query_key_value_bias = _bias(3 * inner)
        self.projection_weight = weight(shape.hidden, inner)
        self.projection_bias = _bias(shape.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """[s or s/t, b, h] to the same; selective recompute keeps only Q, K and V of the core."""
        product = column_parallel(self.norm(hidden), self.query_key_value_weight, self.group)
        projected = product.add_(self.query_key_value_bias)
        heads = self._split_heads(projected)
        context = checkpointed(self.core, *heads) if self.selective else self.core(*heads)
        merged = context.transpose(0, 1).reshape(*projected.shape[:2], -1)
        output = row_parallel(merged, self.projection_weight, self.group)
        return bias_dropout_residual(output, self.projection_bias, hidden)

    def _split_heads(self, projected: Tensor) -> tuple[Tensor, ...]:
        """[s, b, 3h/t] to three views [b·a/t, s, h/a]."""
        tokens, batch, _ = projected.shape
        per_head = projected.view(tokens, batch * self.local_heads, 3, self.head_size)
        return tuple(part.transpose(0, 1) for part in per_head.unbind(2))


class MLP(nn.Module):
    """Layer norm, h → 4h, GeLU, 4h → h, dropout and residual (Figure 2, right)."""

    def __init__(self, shape: LayerShape, group: TensorGroup) -> None:
        super().__init__()
        inner = shape.ffn // shape.tensor
        self.group = group
        self.norm = nn.LayerNorm(shape.hidden)
        self.expansion_weight = weight(inner, shape.hidden)
        self.expansion_bias = _bias(inner)
        self.contraction_weight = weight(shape.hidden, inner)
        self.contraction_bias = _bias(shape.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """[s or s/t, b, h] to the same."""
        wide = column_parallel(self.norm(hidden), self.expansion_weight, self.group)
        activated = functional.gelu(wide.add_(self.expansion_bias), approximate="tanh")
        narrow = row_parallel(activated, self.contraction_weight, self.group)
        return bias_dropout_residual(narrow, self.contraction_bias, hidden)


def _mlp(shape: LayerShape) -> Callable[[LayerShape, TensorGroup], nn.Module]:
    if shape.experts is not None:
        return ExpertsMLP
    return LlamaMLP if shape.is_llama else MLP


def core(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """QKᵀ, causal softmax, dropout, attention over V (Figure 3); all [b·a/t, s, h/a]."""
    scores = torch.bmm(query, key.transpose(1, 2))
    weights = causal_softmax(scores, 1 / math.sqrt(query.shape[-1]))
    return torch.bmm(dropout(weights), value)


def fused_core(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same in one kernel, which keeps a log-sum-exp per row and no scores (FlashAttention).

    All sequences' heads are heads of one, so that the output lies in memory as the projection reads
    it. A CPU's kernel has no dropout: torch would run the unfused ops instead.
    """
    drops = 0.0 if query.is_cpu else DROPOUT
    query, key, value = (part.unsqueeze(0) for part in (query, key, value))
    context = functional.scaled_dot_product_attention(
        query, key, value, dropout_p=drops, is_causal=True
    )
    return context.squeeze(0)


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """Softmax of the scaled scores [n, s, s] up to the diagonal."""
    weights: Tensor = _CausalSoftmax.apply(scores, scale)
    return weights


def dropout(values: Tensor) -> Tensor:
    """Dropout that keeps a mask of one byte an element.

    On a CPU `torch.nn.functional.dropout` would keep its input and a mask in the input's type.
    """
    return torch.native_dropout(values, DROPOUT, True)[0]


def bias_dropout_residual(values: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """residual + dropout(values + bias), [s or s/t, b, h]."""
    return dropout(values.add_(bias)).add_(residual)


class _CausalSoftmax(torch.autograd.Function):
    """Softmax of the scaled scores [n, s, s] up to the diagonal; keeps its output only.

    Torch's own functions would keep the mask of the upper triangle too.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, scale: float) -> Tensor:
        future = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        output = torch.softmax((scores * scale).masked_fill_(future, -math.inf), dim=-1)
        ctx.save_for_backward(output)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        scores_gradient = torch.ops.aten._softmax_backward_data(gradient, output, -1, output.dtype)
        return scores_gradient.mul_(ctx.scale), None


def checkpointed(block: Any, *inputs: Tensor) -> Tensor:
    """Run `block` keeping only its inputs; like Megatron-LM's, its recompute is never cut short."""
    output: Tensor = checkpoint(block, *inputs, use_reentrant=False, early_stop=False)
    return output


def _check_group(shape: LayerShape, group: TensorGroup) -> None:
    divided = shape.tensor, shape.sequence_parallel
    if divided != (group.size, group.sequence_parallel):
        raise ValueError(
            f"the layer is divided for t={divided[0]}, sequence_parallel={divided[1]}, but its "
            f"group has t={group.size}, sequence_parallel={group.sequence_parallel}"
        )


def _bias(width: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(width))
