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
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from calibrate.torch_model.experts import ExpertsMLP
from calibrate.torch_model.kernels import RmsNorm, Tensors, kernel, rotated, swiglu
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
        self.ring = ContextRing(shape.context) if shape.context > 1 else None
        plain: Callable[..., Tensor] = fused_core if shape.fused_attention else core
        self.core = partial(plain, drops=False) if shape.is_llama else plain
        if self.ring:
            self.core = partial(ring_core, ring=self.ring)
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
            positions = self.ring.positions(len(query), query.device) if self.ring else None
            turned = (rotated(part, self.size, positions) for part in (query, key))
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


aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ContextRing:
    """All ranks, which divide each sequence."""

    size: int

    @property
    def rank(self) -> int:
        return dist.get_rank()

    def positions(self, tokens: int, device: Any) -> Tensor:
        """Return the positions of this rank's `tokens` in the sequence."""
        slices = self.rank, 2 * self.size - 1 - self.rank
        within = torch.arange(tokens // 2, device=device)
        return torch.cat([tokens // 2 * number + within for number in slices])

    def attending(self, step: int, tokens: int) -> tuple[slice, slice]:
        """Return the rank's rows that attend, and the columns that they attend to, in a step.

        After `step` shifts a rank holds the block of the rank that is as many before it.
        """
        source = (self.rank - step) % self.size
        rows = slice(tokens // 2 if source > self.rank else 0, tokens)
        return rows, slice(0, tokens // 2 if source < self.rank else tokens)

    def shift(self, block: Tensor, step: int, tag: int = 0) -> Callable[[], Tensor]:
        """Start sending a block `step` ranks on; the result waits for the block that arrives."""
        arriving = torch.empty_like(block)
        after, before = ((self.rank + way) % self.size for way in (step, -step))
        send = dist.P2POp(dist.isend, block, after, tag=tag)
        works = dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, arriving, before, tag=tag)])

        def arrived() -> Tensor:
            for work in works:
                work.wait()
            return arriving

        return arrived


def ring_core(query: Tensor, key: Tensor, value: Tensor, ring: ContextRing) -> Tensor:
    """Causal attention of this rank's queries to the keys of all ranks."""
    output: Tensor = _RingAttention.apply(query, key, value, ring)
    return output


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: ContextRing) -> Tensor:
        """Attend to each block while the next arrives."""
        block, partial, starts = torch.stack((key, value)), [], []
        for step in range(ring.size):
            arriving = ring.shift(block, 1) if step + 1 < ring.size else None
            rows, columns = ring.attending(step, query.shape[1])
            partial.append(_attend(query[:, rows], *block[:, :, columns], is_causal=step == 0))
            starts.append(rows.start)
            if arriving:
                block = arriving()
        output, log_sum_exp = kernel(_corrected, query, *zip(*partial, strict=True), starts)
        ctx.ring = ring
        ctx.save_for_backward(query, block, output, log_sum_exp)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Send the blocks and their gradients back around the ring."""
        query, block, output, log_sum_exp = ctx.saved_tensors
        ring, of_query = ctx.ring, torch.zeros_like(query)
        arriving = None
        for step in reversed(range(ring.size)):
            rows, columns = ring.attending(step, query.shape[1])
            following = ring.shift(block, -1) if step else None
            of_rows = [each[:, rows] for each in (gradient, query, output, log_sum_exp)]
            gradients_of_step = _attend_back(*of_rows, *block[:, :, columns], is_causal=step == 0)
            of_query[:, rows] += gradients_of_step[0]
            gradients = torch.zeros_like(block)
            gradients[:, :, columns] = torch.stack(gradients_of_step[1:])
            if arriving:
                gradients += arriving()
            if following:
                arriving = ring.shift(gradients, -1, tag=1)
                block = following()
        return of_query, gradients[0], gradients[1], None


def _corrected(query: Tensor, outputs: Tensors, rows: Tensors, starts: list[int]) -> Tensors:
    """Outputs of all steps, weighted by their log-sum-exps, and the log-sum-exp of all."""
    whole = [
        torch.nn.functional.pad(each, (start, 0), value=-torch.inf)
        for each, start in zip(rows, starts, strict=True)
    ]
    total = torch.stack(whole).logsumexp(0)
    output = torch.zeros_like(query)
    for each, row, start in zip(outputs, rows, starts, strict=True):
        output[:, start:] += each * (row - total[:, start:]).exp().unsqueeze(-1).to(each.dtype)
    return output, total


def _attend(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Tensors:
    """Output and log-sum-exp of each row by a fused kernel."""
    attend = aten._scaled_dot_product_flash_attention
    if not query.is_cuda:
        attend = aten._scaled_dot_product_flash_attention_for_cpu
    output, rows, *_ = attend(*(each.unsqueeze(0) for each in (query, key, value)), 0.0, is_causal)
    return output.squeeze(0), rows.squeeze(0)


def _attend_back(
    gradient: Tensor,
    query: Tensor,
    output: Tensor,
    rows: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
) -> Tensors:
    """Gradients of queries, keys and values; `output` and `rows` belong to all keys."""
    inputs = [each.unsqueeze(0) for each in (gradient, query, key, value, output, rows)]
    inputs[-1] = inputs[-1].contiguous()
    if query.is_cuda:
        # Without dropout nothing reads the seed and the offset.
        lengths = None, None, query.shape[1], key.shape[1]
        seed = torch.empty(2, dtype=torch.uint64, device=query.device)
        parts = aten._scaled_dot_product_flash_attention_backward(
            *inputs, *lengths, 0.0, is_causal, seed, seed
        )
    else:
        parts = aten._scaled_dot_product_flash_attention_for_cpu_backward(*inputs, 0.0, is_causal)
    return tuple(part.squeeze(0) for part in parts)
