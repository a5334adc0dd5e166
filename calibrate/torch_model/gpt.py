"""A small GPT in torch, whole or one pipeline stage of it, as Megatron-LM runs it.

Word and position embeddings, dropout, the paper's layers under any recompute, a final norm, the
output layer and the cross entropy; or Llama's layers, without positions and dropout. Tokens are
[s, b]; hidden states [s, b, h].
"""

from __future__ import annotations

from torch import Tensor, nn

from calibrate.torch_model.layer import Recompute, TransformerLayer, checkpointed, dropout, norm_of
from calibrate.torch_model.parallel import TensorGroup, column_parallel, weight
from calibrate.torch_model.shape import LayerShape
from calibrate.torch_model.vocabulary import cross_entropy, look_up
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

    def forward(self, given: Tensor, labels: Tensor | None = None) -> Tensor:
        """Map tokens [s, b], or the stage before's output, to this stage's output.

        Outputs are [s or s/t, b, h]; with labels, the mean loss, a scalar in fp32 or finer.
        """
        hidden: Tensor = self.layers(self._embedded(given) if self.first else given)
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
            self.layers.extend(TransformerLayer(shape, inside, group) for _ in unit.layers)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the last layer's output."""
        for unit in self.recompute_units:
            layers = nn.Sequential(*(self.layers[number] for number in unit.layers))
            hidden = checkpointed(layers, hidden) if unit.recomputes else layers(hidden)
        return hidden
