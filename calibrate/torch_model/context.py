"""Attention over sequences that all ranks divide (context parallelism), keys around a ring.

Each sequence is cut into two slices per rank. Rank r of n has slices r and 2n - 1 - r: all ranks
have the same work. Forward, a rank attends to its own keys under a causal mask, then to each block
that arrives. All its queries attend to the first slice of a block from an earlier rank; the queries
of its second slice attend to the whole block of a later rank. Blocks travel back with their
gradients, as in Transformer Engine's AttnFuncWithCPAndKVP2P. Heads are [heads, tokens of this rank,
channels].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from calibrate.torch_model.kernels import Tensors, kernel

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ContextRing:
    """All ranks, which divide each sequence."""

    size: int

    @property
    def rank(self) -> int:
        """Number of this rank."""
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
