"""A small GPT in torch, whole or one stage of it, as Megatron-LM runs it.

Word and position embeddings, dropout, the paper's layers under any recompute, a final norm, the
output layer and the cross entropy; or Llama's layers, without positions and dropout. Tokens are
[s, b]; hidden states [s, b, h].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calibrate.torch_model.layer import (
    Recompute,
    TransformerLayer,
    checkpointed,
    dropout,
)
from calibrate.torch_model.llama import RmsNorm
from calibrate.torch_model.parallel import TensorGroup, column_parallel, weight
from calibrate.torch_model.shape import LayerShape
from calibrate.torch_model.vocabulary import cross_entropy, look_up
from simtrain.scenario import RecomputePolicy
from simtrain.workload.recompute import RecomputeUnit, recompute_units


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
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.group, self.first, self.last = group or TensorGroup(), first, last
        self.is_llama = shape.is_llama
        local_words = shape.vocab // shape.tensor
        with torch.device(device):
            if first:
                self.words = weight(local_words, shape.hidden)
                if not shape.is_llama:
                    self.positions = weight(shape.seq_length, shape.hidden)
            if last:
                shared = tied and first
                self.output = self.words if shared else weight(local_words, shape.hidden)
                self.final_norm = (RmsNorm if shape.is_llama else nn.LayerNorm)(shape.hidden)
        self.layers = LayerStack(shape, num_layers, recompute, group, dtype=dtype, device=device)
        self.to(dtype=dtype)

    def forward(self, given: Tensor, labels: Tensor | None = None) -> Tensor:
        """Tokens [s, b] or the stage before's output, to this one's; on the last to the mean loss.

        Outputs are [s or s/t, b, h], the loss a scalar in fp32 or finer.
        """
        hidden: Tensor = self.layers(self._embedded(given) if self.first else given)
        if labels is None:
            return hidden
        # Megatron-LM holds the 16-bit logits, too, until the loss is there.
        logits = column_parallel(self.final_norm(hidden), self.output, self.group)
        return cross_entropy(logits, labels, self.group).mean()

    def _embedded(self, tokens: Tensor) -> Tensor:
        rows = look_up(tokens, self.words, self.group)
        if self.is_llama:
            return rows
        # Under sequence parallelism a rank uses, and updates, the positions of its tokens only.
        start = self.group.rank * len(rows) if self.group.sequence_parallel else 0
        return dropout(rows + self.positions[start : start + len(rows), None])


class GPT(Stage):
    """All layers on one rank: tokens and labels [s, b] to the mean loss.

    Raises ValueError when `shape` is one of several tensor-parallel ranks.
    """


class LayerStack(nn.Module):
    """Layers one after another, [s, b, h] to the same, each unit of `recompute` as one."""

    def __init__(
        self,
        shape: LayerShape,
        num_layers: int,
        recompute: RecomputePolicy,
        group: TensorGroup | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.recompute_units = recompute_units(recompute, num_layers)
        self.layers = nn.ModuleList(
            TransformerLayer(shape, _within(unit), group, dtype=dtype, device=device)
            for unit in self.recompute_units
            for _ in unit.layers
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """The last layer's output."""
        for unit in self.recompute_units:
            layers = nn.Sequential(*(self.layers[number] for number in unit.layers))
            hidden = checkpointed(layers, hidden) if unit.recomputes else layers(hidden)
        return hidden


def _within(unit: RecomputeUnit) -> Recompute:
    """The recompute of a layer of the unit by itself."""
    return Recompute.SELECTIVE if "core_attention" in unit.regions else Recompute.NONE
