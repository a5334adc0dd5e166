"""A small GPT in torch on one rank, as Megatron-LM runs it on a pipeline of one stage.

Word and position embeddings, dropout, the paper's layers under any recompute, a final layer norm,
the output layer and the cross entropy. Tokens are [s, b]; hidden states [s, b, h].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from calibrate.torch_layer import (
    WEIGHT_DEVIATION,
    Recompute,
    TransformerLayer,
    checkpointed,
    dropout,
)
from calibrate.torch_parallel import TensorGroup, column_parallel
from simtrain.scenario import RecomputePolicy
from simtrain.workload.recompute import Unit, units
from simtrain.workload.shape import LayerShape


class GPT(nn.Module):
    """Tokens and labels [s, b] to the mean loss; `tied` shares the table with the output layer.

    Raises ValueError when `shape` is one of several tensor-parallel ranks.
    """

    def __init__(
        self,
        shape: LayerShape,
        num_layers: int,
        recompute: RecomputePolicy,
        *,
        tied: bool = True,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        with torch.device(device):
            self.words = _table(shape.vocab, shape.hidden)
            self.positions = _table(shape.seq_length, shape.hidden)
            self.output = self.words if tied else _table(shape.vocab, shape.hidden)
            self.final_norm = nn.LayerNorm(shape.hidden)
        self.layers = LayerStack(shape, num_layers, recompute, dtype=dtype, device=device)
        self.to(dtype=dtype)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The mean over all tokens of the cross entropy, a scalar in fp32 or finer."""
        hidden = self.layers(self._embedded(tokens))
        # Megatron-LM holds the 16-bit logits, too, until the loss is there.
        logits = column_parallel(self.final_norm(hidden), self.output, TensorGroup())
        return cross_entropy(logits, labels).mean()

    def _embedded(self, tokens: Tensor) -> Tensor:
        return dropout(functional.embedding(tokens, self.words) + self.positions[:, None])


class LayerStack(nn.Module):
    """Layers one after another, [s, b, h] to the same, each unit of `recompute` as one."""

    def __init__(
        self,
        shape: LayerShape,
        num_layers: int,
        recompute: RecomputePolicy,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.units = units(recompute, num_layers)
        self.layers = nn.ModuleList(
            TransformerLayer(shape, _within(unit), dtype=dtype, device=device)
            for unit in self.units
            for _ in unit.layers
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """The last layer's output."""
        for unit in self.units:
            layers = nn.Sequential(*(self.layers[number] for number in unit.layers))
            hidden = checkpointed(layers, hidden) if unit.again else layers(hidden)
        return hidden


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Losses [s, b] of logits [s, b, v]; for the backward pass it keeps one fp32 softmax."""
    losses: Tensor = _CrossEntropy.apply(_to_fp32(logits), labels)
    return losses


class _CrossEntropy(torch.autograd.Function):
    """Megatron-LM's `vocab_parallel_cross_entropy`, where it subtracts out of place (core 0.x).

    Of [s, b, v] it holds what it is given and those less their maximum; the gradient takes the
    place of the softmax. Versions before and after subtract in place.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        shifted = logits - logits.amax(dim=-1, keepdim=True)
        target = shifted.gather(-1, labels[..., None])[..., 0]
        softmax = shifted.exp_()
        total = softmax.sum(dim=-1)
        softmax.div_(total[..., None])
        ctx.save_for_backward(softmax, labels)
        return total.log() - target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        softmax, labels = ctx.saved_tensors
        minus_one = torch.full_like(labels[..., None], -1, dtype=softmax.dtype)
        softmax.scatter_add_(-1, labels[..., None], minus_one)
        return softmax.mul_(gradient[..., None]), None


def _to_fp32(logits: Tensor) -> Tensor:
    return logits if logits.dtype is torch.float64 else logits.float()


def _within(unit: Unit) -> Recompute:
    """What a layer of the unit recomputes by itself."""
    return Recompute.NONE if unit.keep_scores else Recompute.SELECTIVE


def _table(rows: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, width) * WEIGHT_DEVIATION)
