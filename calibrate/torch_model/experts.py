"""Experts in torch instead of a layer's MLP; each rank of the group holds its share of them.

Router, top-k, permutation, all-to-all to the ranks of the experts, their gated MLPs, and back, in
the order of Megatron-LM's `MoELayer` with `MoEAlltoAllTokenDispatcher` and `TEGroupedMLP`, without
auxiliary loss. Every expert gets as many tokens as the others, independent of the router
(Megatron-LM's --moe-router-force-load-balancing): simtrain's `imbalance` of 1. Rows are tokens: n
per rank, or n · k with a copy for each chosen expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from calibrate.torch_model.kernels import (
    RmsNorm,
    Tensors,
    differentiable,
    swiglu_backward,
    swiglu_forward,
)
from calibrate.torch_model.parallel import TensorGroup, column_parallel, weight, weight_gradient
from calibrate.torch_model.shape import LayerShape

_FAVOUR = 1e4
"""Added to the logits of the experts that a token is sent to; larger than any logit."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Rows that this rank sends to and receives from each rank; `received` is [rank][expert]."""

    group: TensorGroup
    sent: list[int]
    received: list[list[int]]

    @property
    def by_rank(self) -> list[int]:
        """Rows from each rank."""
        return [sum(chunks) for chunks in self.received]

    @property
    def per_expert(self) -> list[list[int]]:
        """Rows of each of this rank's experts by the rank that they are from: [expert][rank]."""
        return [list(chunks) for chunks in zip(*self.received, strict=True)]


class ExpertsMLP(nn.Module):
    """RMS norm, the experts of each token, and residual.

    A rank holds all tokens if the group has one rank, else its tokens under sequence parallelism.
    """

    def __init__(self, shape: LayerShape, group: TensorGroup) -> None:
        super().__init__()
        assert shape.experts is not None, "a layer with experts"
        self.group, self.num, self.top_k = group, shape.experts.num, shape.experts.top_k
        own, ffn = self.num // group.size, shape.experts.ffn_hidden_size
        self.norm = RmsNorm(shape.hidden)
        self.router_weight = weight(self.num, shape.hidden)
        self.experts_up_weight = weight(own, 2 * ffn, shape.hidden)
        self.experts_down_weight = weight(own, shape.hidden, ffn)

    def forward(self, hidden: Tensor) -> Tensor:
        """[s or s/t, b, h] to the same."""
        normed = self.norm(hidden)
        copying: Any = {"constants": (self.top_k,), "keeps_first": False}
        logits = column_parallel(normed, self.router_weight, TensorGroup()).flatten(0, 1)
        weights, experts = self._route(logits)
        # A stable sort keeps the tokens of an expert in order, as Megatron-LM's permute does.
        order = experts.flatten().argsort(stable=True)
        rows = differentiable(_copies, _sums, normed.flatten(0, 1), order, **copying)
        probabilities = weights.flatten().gather(0, order)
        del normed, logits, weights
        splits = self._splits(experts)
        rows, probabilities = (exchanged(each, splits) for each in (rows, probabilities))
        rows, probabilities = (_reordered(each, splits.received) for each in (rows, probabilities))
        sizes = [sum(chunks) for chunks in splits.per_expert]
        wide = grouped_linear(rows, self.experts_up_weight, sizes)
        del rows
        activated = differentiable(_weighted, _weighted_gradients, wide, probabilities)
        del wide, probabilities
        output = grouped_linear(activated, self.experts_down_weight, sizes)
        del activated
        output = exchanged(_reordered(output, splits.per_expert), splits, back=True)
        return hidden + differentiable(_sums, _copies, output, order, **copying).view_as(hidden)

    def _route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and experts [n, k] of each token; each expert gets as many tokens."""
        num_tokens = logits.shape[0]
        tokens = torch.arange(num_tokens, device=logits.device) + self.group.rank * num_tokens
        choices = torch.arange(self.top_k, device=logits.device)
        wanted = (tokens[:, None] * self.top_k + choices) % self.num
        favour = torch.full(wanted.shape, _FAVOUR, device=logits.device)
        with torch.no_grad():
            experts = logits.float().scatter_add(1, wanted, favour).topk(self.top_k).indices
        return torch.softmax(logits.float().gather(1, experts), -1).to(logits.dtype), experts

    def _splits(self, experts: Tensor) -> Splits:
        """Exchange the number of tokens of each expert among the ranks; the host waits for it."""
        if experts.is_meta:  # no numbers to count
            return Splits(self.group, [experts.numel()], [[experts.numel() // self.num] * self.num])
        counts = torch.bincount(experts.flatten(), minlength=self.num)
        if self.group.size == 1:
            return Splits(self.group, [experts.numel()], [counts.tolist()])
        everyone = self.group.all_gather(counts[None]).wait()
        per_rank = everyone.unflatten(1, (self.group.size, -1)).tolist()
        rank = self.group.rank
        sent = [sum(chunks) for chunks in per_rank[rank]]
        return Splits(self.group, sent, [chunks[rank] for chunks in per_rank])


def exchanged(rows: Tensor, splits: Splits, *, back: bool = False) -> Tensor:
    """Send each rank's rows to the ranks of their experts, or `back`."""
    if splits.group.size == 1:
        return rows
    sent, received = splits.sent, splits.by_rank
    if back:
        sent, received = received, sent
    arrived: Tensor = _AllToAll.apply(rows, sent, received, splits.group)
    return arrived


def grouped_linear(rows: Tensor, weights: Tensor, sizes: list[int]) -> Tensor:
    """Multiply the rows of each expert, `sizes` of them, by its weight [m, h]."""
    output: Tensor = _GroupedLinear.apply(rows, weights, sizes)
    return output


def _reordered(rows: Tensor, chunks: list[list[int]]) -> Tensor:
    """Reorder chunks [rank][expert] to [expert][rank], or the other way round."""
    if len(chunks) == 1 or len(chunks[0]) == 1:
        return rows
    parts = rows.split([size for outer in chunks for size in outer])
    inner = len(chunks[0])
    return torch.cat([part for first in range(inner) for part in parts[first::inner]])


def _copies(tokens: Tensor, order: Tensor, top_k: int) -> Tensors:
    """Copy each token for each of its experts: [n, h] to [n · k, h]."""
    return (tokens[order // top_k],)


def _sums(rows: Tensor, order: Tensor, top_k: int) -> Tensors:
    """Sum over the experts of each token: [n · k, h] to [n, h]."""
    places = torch.empty_like(order).scatter(
        0, order, torch.arange(len(order), device=order.device)
    )
    return (rows[places].unflatten(0, (-1, top_k)).sum(1),)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: TensorGroup
    ) -> Tensor:
        """Send rows to the other ranks of the group."""
        ctx.back = received, sent, group
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(
            arrived, rows.contiguous(), received, sent, group=group.process_group
        )
        return arrived

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Send the gradients the other way."""
        return _AllToAll.apply(gradient, *ctx.back), None, None, None


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, sizes: list[int]) -> Tensor:
        """Multiply the rows of each expert by its weight."""
        ctx.save_for_backward(rows, weights)
        ctx.sizes, ctx.main_gradient = sizes, getattr(weights, "main_grad", None)
        return _products(rows, weights.mT, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Return the gradients of rows and weights, or add those of weights to `main_grad`."""
        rows, weights = ctx.saved_tensors
        main = ctx.main_gradient
        of_rows = _products(gradient, weights, ctx.sizes)
        parts = zip(gradient.split(ctx.sizes), rows.split(ctx.sizes), strict=True)
        products = [
            weight_gradient(left[:, None], right[:, None], None if main is None else main[expert])
            for expert, (left, right) in enumerate(parts)
        ]
        of_weights = [product for product in products if product is not None]
        return of_rows, torch.stack(of_weights) if of_weights else None, None


def _products(rows: Tensor, weights: Tensor, sizes: list[int]) -> Tensor:
    """Multiply each expert's rows by its weight [inputs, outputs], into one tensor."""
    output = rows.new_empty(rows.shape[0], weights.shape[-1])
    for given, matrix, made in zip(rows.split(sizes), weights, output.split(sizes), strict=True):
        torch.mm(given, matrix, out=made)
    return output


def _weighted(rows: Tensor, probabilities: Tensor) -> Tensors:
    """SwiGLU of each row times its probability."""
    (activated,) = swiglu_forward(rows)
    return (activated * probabilities[:, None],)


def _weighted_gradients(gradient: Tensor, rows: Tensor, probabilities: Tensor) -> Tensors:
    (activated,) = swiglu_forward(rows)
    (of_rows,) = swiglu_backward(gradient * probabilities[:, None], rows)
    return of_rows, (gradient * activated).sum(-1)
