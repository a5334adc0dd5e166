"""Experts in torch instead of a layer's MLP; each rank of the group holds its share of them.

Router, top-k, permutation, all-to-all to the ranks of the experts, their gated MLPs, and back, in
the order of Megatron-LM's `MoELayer` with `MoEAlltoAllTokenDispatcher` and `TEGroupedMLP`, without
auxiliary loss. Every expert gets as many tokens as the others, independent of the router
(Megatron-LM's --moe-router-force-load-balancing): simtrain's `imbalance` of 1. Rows are tokens: n
per rank, or n · k with a copy for each chosen expert.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor

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


class ExpertsMLP(nn.Module):
    """RMS norm, the experts of each token, and residual.

    A rank holds all tokens if the group has one rank, else its tokens under sequence parallelism.
    """

    def __init__(self, shape: LayerShape, group: TensorGroup) -> None:
        super().__init__()
        assert shape.experts is not None, "a layer with experts"
        self.group, self.num, self.top_k = group, shape.experts.num, shape.experts.top_k
        num_local, ffn = self.num // group.size, shape.experts.ffn_hidden_size
        self.norm = RmsNorm(shape.hidden)
        self.router_weight = weight(self.num, shape.hidden)
        self.experts_up_weight = weight(num_local, 2 * ffn, shape.hidden)
        self.experts_down_weight = weight(num_local, shape.hidden, ffn)

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
        sent, received = self._splits(experts)
        per_expert = [list(chunks) for chunks in zip(*received, strict=True)]
        by_rank, sizes = ([sum(chunks) for chunks in each] for each in (received, per_expert))
        rows, probabilities = (self._exchanged(x, sent, by_rank) for x in (rows, probabilities))
        rows, probabilities = (_reordered(each, received) for each in (rows, probabilities))
        wide = _GroupedLinear.apply(rows, self.experts_up_weight, sizes)
        del rows
        activated = differentiable(_weighted, _weighted_gradients, wide, probabilities)
        del wide, probabilities
        output = _GroupedLinear.apply(activated, self.experts_down_weight, sizes)
        del activated
        output = self._exchanged(_reordered(output, per_expert), by_rank, sent)
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

    def _splits(self, experts: Tensor) -> tuple[list[int], list[list[int]]]:
        """Rows that this rank sends to each rank, and that it receives, [rank][expert].

        The ranks exchange the number of tokens of each expert; the host waits for it.
        """
        if experts.is_meta:  # no numbers to count
            return [experts.numel()], [[experts.numel() // self.num] * self.num]
        counts = torch.bincount(experts.flatten(), minlength=self.num)
        everyone = counts[None]
        if self.group.size > 1:
            everyone = self.group.all_gather(everyone).wait()
        per_rank = everyone.unflatten(1, (self.group.size, -1)).tolist()
        rank = self.group.rank
        return [sum(chunks) for chunks in per_rank[rank]], [chunks[rank] for chunks in per_rank]

    def _exchanged(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send rows to the ranks of their experts, or back: `sent` of them to each rank."""
        if self.group.size == 1:
            return rows
        ranks: Any = self.group.process_group or dist.group.WORLD
        arrived: Tensor = wait_tensor(all_to_all_single(rows.contiguous(), received, sent, ranks))
        return arrived


def _reordered(rows: Tensor, chunks: list[list[int]]) -> Tensor:
    """Reorder chunks [rank][expert] to [expert][rank], or the other way round."""
    if len(chunks) == 1 or len(chunks[0]) == 1:
        return rows
    parts = rows.split([size for outer in chunks for size in outer])
    inner = len(chunks[0])
    return torch.cat([part for first in range(inner) for part in parts[first::inner]])


def _copies(tokens: Tensor, order: Tensor, top_k: int) -> Tensors:
    return (tokens[order // top_k],)


def _sums(rows: Tensor, order: Tensor, top_k: int) -> Tensors:
    """Sum over the experts of each token: [n · k, h] to [n, h]."""
    places = torch.empty_like(order).scatter(
        0, order, torch.arange(len(order), device=order.device)
    )
    return (rows[places].unflatten(0, (-1, top_k)).sum(1),)


class _GroupedLinear(torch.autograd.Function):
    """Multiplies the rows of each expert, `sizes` of them, by its weight [m, h]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, sizes: list[int]) -> Tensor:
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
    for part, matrix, made in zip(rows.split(sizes), weights, output.split(sizes), strict=True):
        torch.mm(part, matrix, out=made)
    return output


def _weighted(rows: Tensor, probabilities: Tensor) -> Tensors:
    (activated,) = swiglu_forward(rows)
    return (activated * probabilities[:, None],)


def _weighted_gradients(gradient: Tensor, rows: Tensor, probabilities: Tensor) -> Tensors:
    (activated,) = swiglu_forward(rows)
    (of_rows,) = swiglu_backward(gradient * probabilities[:, None], rows)
    return of_rows, (gradient * activated).sum(-1)
