"""Word embeddings and cross entropy over a vocabulary that ranks divide.

Sources: Megatron-LM's `VocabParallelEmbedding` and `vocab_parallel_cross_entropy`. Tokens and
labels are [s, b]. Of v words each rank holds the rows [rank · v/t, (rank + 1) · v/t).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from calibrate.torch_model.parallel import TensorGroup, sum_over_ranks


def look_up(tokens: Tensor, table: Tensor, group: TensorGroup) -> Tensor:
    """Look up tokens [s, b] in the ranks' parts [v/t, h] of a table: [s or s/t, b, h]."""
    if group.size == 1:
        return functional.embedding(tokens, table)
    own, elsewhere = _own(tokens, table.shape[0], group)
    rows = functional.embedding(own, table).masked_fill(elsewhere[..., None], 0)
    return sum_over_ranks(rows, group)


def cross_entropy(logits: Tensor, labels: Tensor, group: TensorGroup | None = None) -> Tensor:
    """Losses [s, b] of logits [s, b, v/t]; it saves one fp32 softmax."""
    # A copy that the loss may overwrite, in fp32 or finer.
    is_fine = logits.dtype in (torch.float32, torch.float64)
    copy = logits.clone() if is_fine else logits.float()
    losses: Tensor = _CrossEntropy.apply(copy, labels, group or TensorGroup())
    return losses


class _CrossEntropy(torch.autograd.Function):
    """Megatron-LM's `vocab_parallel_cross_entropy`, which works in place.

    The softmax overwrites the logits [s, b, v/t], and the gradient overwrites the softmax. Versions
    between 2022 and June 2024 subtract the maximum into a copy.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, group: TensorGroup) -> Tensor:
        """Return the loss of each token, with the softmax in the place of the logits."""
        shifted = logits.sub_(group.maximum(logits.amax(dim=-1, keepdim=True)))
        own, elsewhere = _own(labels, logits.shape[-1], group)
        target = shifted.gather(-1, own[..., None])[..., 0].masked_fill_(elsewhere, 0)
        group.all_reduce(target).wait()
        softmax = shifted.exp_()
        total = group.all_reduce(softmax.sum(dim=-1)).wait()
        softmax.div_(total[..., None])
        ctx.save_for_backward(softmax, labels)
        ctx.group = group
        return total.log() - target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient in the place of the softmax."""
        softmax, labels = ctx.saved_tensors
        own, elsewhere = _own(labels, softmax.shape[-1], ctx.group)
        minus_one = elsewhere.to(softmax.dtype).sub_(1)
        softmax.scatter_add_(-1, own[..., None], minus_one[..., None])
        return softmax.mul_(gradient[..., None]), None, None


def _own(tokens: Tensor, num_words: int, group: TensorGroup) -> tuple[Tensor, Tensor]:
    """Rows of this rank's part, 0 for words of other ranks, and the mask of those words."""
    rows = tokens - group.rank * num_words
    elsewhere = (rows < 0) | (rows >= num_words)
    return rows.masked_fill_(elsewhere, 0), elsewhere
