"""Tensor and sequence parallelism in torch: the operators f, f̄, g and ḡ (Figures 4 to 6).

Activations are [tokens, batch, width]: one rank's part of the sequence is contiguous. The order and
the overlap of collectives follow Megatron-LM's `LinearWithGradAccumulationAndAsyncCommunication`. A
weight's gradient is added into its `main_grad` (Megatron-LM's `wgrad_gemm_accum_fp32`), or returned
to autograd if it has none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_WEIGHT_DEVIATION = 0.02
_names = vars(dist)
# torch has these two under shorter names since 2025, and the older ones still.
all_gather_single = _names.get("all_gather_single") or _names["all_gather_into_tensor"]
reduce_scatter_single = _names.get("reduce_scatter_single") or _names["reduce_scatter_tensor"]
_ADDS_INTO_FP32 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)
"""Whether `addmm` on a GPU adds 16-bit products to an fp32 sum: its `out_dtype` is of torch 2.8."""


def weight(*sizes: int) -> nn.Parameter:
    """A parameter with normally distributed values."""
    return nn.Parameter(torch.randn(*sizes) * _WEIGHT_DEVIATION)


def own_group(groups: Iterable[Sequence[int]]) -> dist.ProcessGroup | None:
    """Create disjoint groups, together with all ranks; return the group of this rank, if any."""
    made = [(ranks, dist.new_group(list(ranks))) for ranks in groups]
    return next((group for ranks, group in made if dist.get_rank() in ranks), None)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A collective that may still be running, and its result."""

    result: Tensor
    work: dist.Work | None = None

    def wait(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
        return self.result


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """The `size` ranks that share a layer; `process_group` None is the group of all ranks.

    With `sequence_parallel` each rank holds 1/size of the tokens outside the parallel linears. A
    group of one rank needs no process group and sends nothing.
    """

    size: int = 1
    sequence_parallel: bool = False
    process_group: dist.ProcessGroup | None = None

    @property
    def rank(self) -> int:
        return dist.get_rank(self.process_group) if self.size > 1 else 0

    def gather_tokens(self, tokens: Tensor) -> InFlight:
        """Start gathering [s/t, b, n] to [s, b, n]; only under sequence parallelism."""
        return self.all_gather(tokens) if self.sequence_parallel else InFlight(tokens)

    def sum_partials(self, partial: Tensor) -> InFlight:
        """Start summing [s, b, n] in place, or to a rank's [s/t, b, n] in sequence parallelism."""
        return self.reduce_scatter(partial) if self.sequence_parallel else self.all_reduce(partial)

    def all_reduce(self, partial: Tensor) -> InFlight:
        """Start summing `partial` over the ranks, in place."""
        if self.size == 1:
            return InFlight(partial)
        return InFlight(partial, dist.all_reduce(partial, group=self.process_group, async_op=True))

    def maximum(self, values: Tensor) -> Tensor:
        """Replace `values` by the largest over the ranks."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.process_group)
        return values

    def all_gather(self, part: Tensor) -> InFlight:
        """Start joining the ranks' parts along their first dimension."""
        whole, part = part.new_empty(part.shape[0] * self.size, *part.shape[1:]), part.contiguous()
        work = all_gather_single(whole, part, group=self.process_group, async_op=True)
        return InFlight(whole, work)

    def reduce_scatter(self, partial: Tensor) -> InFlight:
        """Start summing `partial`; each rank gets its part of the first dimension."""
        part = partial.new_empty(partial.shape[0] // self.size, *partial.shape[1:])
        whole = partial.contiguous()
        work = reduce_scatter_single(part, whole, group=self.process_group, async_op=True)
        return InFlight(part, work)


def column_parallel(tokens: Tensor, weight: Tensor, group: TensorGroup) -> Tensor:
    """Operator f or g, then X Aᵀ: [s or s/t, b, n] and [m/t, n] to [s, b, m/t].

    It saves only this rank's tokens. The backward pass gathers the others again while it computes
    the input gradient, and sums the input gradient while it computes the weight gradient.
    """
    output: Tensor = _ColumnParallel.apply(tokens, weight, group)
    return output


def row_parallel(inner: Tensor, weight: Tensor, group: TensorGroup) -> Tensor:
    """X Aᵀ, then operator f̄ or ḡ: [s, b, n/t] and [m, n/t] to [s or s/t, b, m]."""
    return sum_over_ranks(column_parallel(inner, weight, TensorGroup()), group)


def sum_over_ranks(partial: Tensor, group: TensorGroup) -> Tensor:
    """Operator f̄ or ḡ: the ranks' [s, b, m] to [s or s/t, b, m], in place if the shape stays."""
    if group.size == 1:
        return partial
    output: Tensor = _SumPartials.apply(partial, group)
    return output


class _ColumnParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, group: TensorGroup) -> Tensor:
        ctx.save_for_backward(tokens, weight)
        ctx.group, ctx.main_gradient = group, getattr(weight, "main_grad", None)
        return group.gather_tokens(tokens).wait() @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Overlap a second gather with the input gradient, and its sum with the weight gradient."""
        tokens, weight = ctx.saved_tensors
        gathering = ctx.group.gather_tokens(tokens)
        input_gradient = gradient @ weight
        all_tokens = gathering.wait()
        summing = ctx.group.sum_partials(input_gradient)
        product = weight_gradient(gradient, all_tokens, ctx.main_gradient)
        return summing.wait(), product, None


class _SumPartials(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: TensorGroup) -> Tensor:
        """Sum the ranks' partial outputs, or reduce-scatter them with sequence parallelism."""
        ctx.group = group
        if not group.sequence_parallel:
            ctx.mark_dirty(partial)
        return group.sum_partials(partial).wait()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.gather_tokens(gradient).wait(), None


def weight_gradient(gradient: Tensor, tokens: Tensor, main: Tensor | None) -> Tensor | None:
    """[s, b, m]ᵀ [s, b, n]: return the product, or add it to `main` [m, n] and return None."""
    left, right = gradient.flatten(0, 1).t(), tokens.flatten(0, 1)
    if main is None:
        return left @ right
    if left.dtype == main.dtype:
        main.addmm_(left, right)
    elif main.is_cpu or not _ADDS_INTO_FP32:
        main.add_(left @ right)
    else:
        torch.addmm(main, left, right, out_dtype=main.dtype, out=main)
    return None
