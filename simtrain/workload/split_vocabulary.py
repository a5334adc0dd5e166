"""Blocks of a vocabulary that is split over the stages of a pipeline (Yeung et al. 2024).

Each stage has a part of the embedding and of the output layer, which tensor-parallel ranks divide
further. Sources: `VocabParallelInput` and `VocabParallelOutput` of sail-sg's zero-bubble
repository. Collectives over the stages are tasks of the iteration (`stage_collectives`), not ops of
these blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simtrain.base.mesh import Group
from simtrain.workload.blocks import column_linear, cross_entropy, dropout, look_up, positions
from simtrain.workload.blocks.linear_ops import LinearOps
from simtrain.workload.ops import Op, Ops, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Microbatch, Parameter, Tape
from simtrain.workload.work import FP32_BYTES, CollectiveKind, KernelFamily


@dataclass(frozen=True, slots=True)
class EmbeddingPart:
    """A stage's part of the table of word embeddings, `vocab` rows."""

    vocab: int
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the lookup of tokens in this part; other tokens give zeros."""
        return look_up(tape, self.vocab)


@dataclass(frozen=True, slots=True)
class EmbeddedTokens:
    """The rest of the embedding on the first stage: learned positions and dropout."""

    learned_positions: bool
    drops_out: bool
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        """Record them, from the sum of the lookups of all stages."""
        y = positions(tape, x) if self.learned_positions else x
        return dropout(tape, y, "embedding dropout") if self.drops_out else y


@dataclass(frozen=True, slots=True)
class HeadPart:
    """A stage's part of the output layer and of the loss, `vocab` columns.

    The forward pass is the paper's S, the backward pass its T: S computes the softmax of the part
    alone, and T corrects it with the maximum and the sum of all parts.

    Args:
        vocab: columns of the part.
        in_place_cross_entropy: as the scenario's field.
        has_early_gradient: S also computes the input gradient, and T only the weight gradient.
    """

    vocab: int
    in_place_cross_entropy: bool
    has_early_gradient: bool
    is_unit: bool = False

    def forward(self, tape: Tape, x: Tensor) -> None:
        """Record both passes."""
        if not self.has_early_gradient:
            names = "logits", "output layer"
            logits = column_linear(
                tape, x, self.vocab, *names, bias=False, in_fp8=False, has_userbuffers=False
            )
            self._loss(tape, logits)
            return
        batch = tape.microbatch
        columns = self.vocab // batch.tensor.num_ranks
        ops = LinearOps("logits", batch, batch.tokens, x.width, columns, (x,), None, is_cast=False)
        logits = tape.tensor("logits output", batch.tokens, columns)
        forward = (*_gather(batch, Phase.FORWARD), ops.product())
        backward = (*_gather(batch, Phase.WEIGHT_GRADIENT), *ops.weight_gradient())
        weight = (Parameter(ops.weights),)
        tape.record("logits", (), (logits,), forward, backward, parameters=weight)
        self._loss(tape, logits)
        tape.record("early gradient", (), (), (*_early_gradient(ops),))

    def _loss(self, tape: Tape, logits: Tensor) -> None:
        cross_entropy(tape, logits, in_place=self.in_place_cross_entropy)
        size = logits.elements * FP32_BYTES
        correction = elementwise(
            "softmax correction",
            size,
            size,
            Phase.INPUT_GRADIENT,
            holds_bytes=0,
            family=KernelFamily.CROSS_ENTROPY,
        )
        tape.record("softmax correction", (), (), (), (correction,))


def _gather(batch: Microbatch, phase: Phase) -> Iterator[Op]:
    """Gather all tokens of a sequence-parallel input."""
    if batch.sequence_parallel:
        kind = CollectiveKind.ALL_GATHER
        yield collective("output layer g", kind, batch.activation_bytes, batch.tensor, phase)


def _early_gradient(ops: LinearOps) -> Iterator[Op]:
    """Yield the input gradient of the part's softmax and of its targets, in the first pass.

    Source: `_ForwardImpl` of vocab_output.py: softmax times weight, and rows of the weight.
    """
    batch, elements = ops.microbatch, ops.rows * ops.outputs
    fp32, narrow = elements * FP32_BYTES, elements * batch.element_bytes
    family = KernelFamily.CROSS_ENTROPY
    yield elementwise("softmax to compute type", fp32, narrow, holds_bytes=narrow, family=family)
    yield ops.input_gradient().replace(phase=Phase.FORWARD)
    yield elementwise("weights of targets", ops.input_bytes, ops.input_bytes)
    kind = CollectiveKind.REDUCE_SCATTER if batch.sequence_parallel else CollectiveKind.ALL_REDUCE
    if batch.tensor.num_ranks > 1:
        for name in ("softmax", "targets"):
            yield collective(f"output layer f of {name}", kind, ops.input_bytes, batch.tensor)


def stage_collectives(
    batch: Microbatch, stages: Group, *, has_early_gradient: bool
) -> dict[str, Ops]:
    """Return the collectives over all stages that each microbatch needs, by name.

    A broadcast takes the time of an all-gather of its array: in both, the array passes every rank
    of a ring.

    Args:
        batch: the hidden states of a microbatch on one rank.
        stages: the stages of the pipeline.
        has_early_gradient: the input gradient is summed with the statistics of the softmax.
    """
    states, tokens = batch.local_bytes, batch.local_tokens * FP32_BYTES
    reduce, broadcast = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
    statistics = tuple(
        collective(f"cross entropy {name} over stages", reduce, tokens, stages)
        for name in ("maximum", "target", "sum")
    )
    gradient = collective("output layer gradient", reduce, states, stages, Phase.INPUT_GRADIENT)
    every = {
        "embedding sum": (collective("embedding sum over stages", reduce, states, stages),),
        "hidden states": (collective("hidden states to all stages", broadcast, states, stages),),
        "statistics": (*statistics, gradient) if has_early_gradient else statistics,
        "embedding gradient": (
            collective(
                "embedding gradient to all stages",
                broadcast,
                states,
                stages,
                Phase.INPUT_GRADIENT,
            ),
        ),
    }
    return every if has_early_gradient else every | {"gradient": (gradient,)}
