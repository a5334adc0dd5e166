"""A small GPT in torch, whole or one pipeline stage of it, as Megatron-LM runs it.

Word and position embeddings, dropout, the paper's layers under any recompute, a final norm, the
output layer and the cross entropy; or Llama's layers, without positions and dropout. Tokens and
labels are [s, b]; hidden states [s, b, h].

Ranks divide the vocabulary, as Megatron-LM's `VocabParallelEmbedding` and
`vocab_parallel_cross_entropy` do: of v words each holds the rows [rank · v/t, (rank + 1) · v/t).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from calibrate.torch_model.layer import Recompute, TorchLayer, checkpointed, dropout, norm_of
from calibrate.torch_model.parallel import TensorGroup, column_parallel, sum_over_ranks, weight
from calibrate.torch_model.shape import LayerShape
from simtrain.scenario import RecomputePolicy
from simtrain.workload.recompute import recompute_units


class Stage(nn.Module):
    """A pipeline stage's layers on one rank; the first has the embedding, the last the head.

    Each rank of `group` holds its part of the vocabulary. `tied` shares the table with the output
    layer: on one stage as one parameter, on several as two that start differently unless seeded.
    Raises ValueError if `group` does not divide the layer as `shape` does.
    """

    def __init__(
        self,
        shape: LayerShape,
        num_layers: int,
        recompute: RecomputePolicy,
        group: TensorGroup | None = None,
        *,
        first: bool = True,
        last: bool = True,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.group, self.first, self.last = group or TensorGroup(), first, last
        self.is_llama = shape.is_llama
        local_words = shape.vocab // shape.tensor
        if first:
            self.words = weight(local_words, shape.hidden)
            if not shape.is_llama:
                self.positions = weight(shape.seq_length, shape.hidden)
        if last:
            shared = tied and first
            self.output = self.words if shared else weight(local_words, shape.hidden)
            self.final_norm = norm_of(shape)
        self.layers = LayerStack(shape, num_layers, recompute, group)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Map tokens [s, b], or the stage before's output, to this stage's output.

        Outputs are [s or s/t, b, h]; with labels, the mean loss, a scalar in fp32 or finer.
        """
        hidden: Tensor = self.layers(self._embedded(x) if self.first else x)
        if labels is None:
            return hidden
        # Megatron-LM holds the 16-bit logits, too, until it has the loss.
        logits = column_parallel(self.final_norm(hidden), self.output, self.group)
        return cross_entropy(logits, labels, self.group).mean()

    def _embedded(self, tokens: Tensor) -> Tensor:
        rows = look_up(tokens, self.words, self.group)
        if self.is_llama:
            return rows
        # Under sequence parallelism a rank uses, and updates, the positions of its tokens only.
        start = self.group.rank * len(rows) if self.group.sequence_parallel else 0
        return dropout(rows + self.positions[start : start + len(rows), None])


class LayerStack(nn.Module):
    """Layers in a row, [s, b, h] to the same; each unit of `recompute` is recomputed as one."""

    def __init__(
        self,
        shape: LayerShape,
        num_layers: int,
        recompute: RecomputePolicy,
        group: TensorGroup | None = None,
    ) -> None:
        super().__init__()
        self.recompute_units = recompute_units(recompute, num_layers)
        self.layers = nn.ModuleList()
        for unit in self.recompute_units:
            is_selective = "core_attention" in unit.regions
            inside = Recompute.SELECTIVE if is_selective else Recompute.NONE
            self.layers.extend(TorchLayer(shape, inside, group) for _ in unit.layers)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the last layer's output."""
        for unit in self.recompute_units:
            layers = nn.Sequential(*(self.layers[number] for number in unit.layers))
            hidden = checkpointed(layers, hidden) if unit.recomputes else layers(hidden)
        return hidden


def look_up(tokens: Tensor, table: Tensor, group: TensorGroup) -> Tensor:
    """Look up tokens [s, b] in the ranks' parts [v/t, h] of a table: [s or s/t, b, h]."""
    if group.size == 1:
        return functional.embedding(tokens, table)
    local, elsewhere = _own(tokens, table.shape[0], group)
    rows = functional.embedding(local, table).masked_fill(elsewhere[..., None], 0)
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
        local, elsewhere = _own(labels, logits.shape[-1], group)
        target = shifted.gather(-1, local[..., None])[..., 0].masked_fill_(elsewhere, 0)
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
        local, elsewhere = _own(labels, softmax.shape[-1], ctx.group)
        minus_one = elsewhere.to(softmax.dtype).sub_(1)
        softmax.scatter_add_(-1, local[..., None], minus_one[..., None])
        return softmax.mul_(gradient[..., None]), None, None


def _own(tokens: Tensor, num_words: int, group: TensorGroup) -> tuple[Tensor, Tensor]:
    """Rows of this rank's part, 0 for words of other ranks, and the mask of those words."""
    rows = tokens - group.rank * num_words
    elsewhere = (rows < 0) | (rows >= num_words)
    return rows.masked_fill_(elsewhere, 0), elsewhere
