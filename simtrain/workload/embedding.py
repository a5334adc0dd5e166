"""The embedding of the first stage: vocabulary-parallel table, positions, dropout.

Sources: Megatron-LM's `VocabParallelEmbedding` and `Embedding` (each rank looks up its own part
of the vocabulary, zeroes the rest, and the parts are summed).
"""

from __future__ import annotations

from simtrain.workload.issue import IssueOrder
from simtrain.workload.linear import collective
from simtrain.workload.ops import CollectiveKind, Elementwise, Kernel, Phase
from simtrain.workload.shape import MASK_BYTES, LayerShape


def embedding_forward(order: IssueOrder, shape: LayerShape) -> None:
    """Look up, sum over the tensor-parallel ranks, add positions, drop out."""
    whole = shape.activation_bytes
    local = shape.local_tokens * shape.hidden
    order.compute(Elementwise("embedding lookup", whole, whole, Phase.FORWARD, holds=whole))
    order.compute(Elementwise("embedding mask", 0, whole, Phase.FORWARD))
    order.block(collective(shape, "embedding sum", _forward_sum(shape), Phase.FORWARD))
    local_bytes = local * shape.element_bytes
    order.compute(Elementwise("position embedding", 2 * local_bytes, local_bytes, Phase.FORWARD))
    order.compute(
        Elementwise(
            "embedding dropout",
            local_bytes,
            local_bytes + local * MASK_BYTES,
            Phase.FORWARD,
            saved=(shape.saved("embedding dropout mask", local, MASK_BYTES),),
        )
    )


def embedding_backward(order: IssueOrder, shape: LayerShape) -> None:
    """Gradient of the table: scattered into a zeroed table, then added to the gradient buffer.

    The table is no linear layer, so its gradient is not accumulated by a matrix product: it is
    written whole in the compute type and added to the gradient buffer by a kernel of its own.
    """
    local = shape.local_tokens * shape.hidden
    phase = Phase.WEIGHT_GRADIENT
    order.compute(
        Elementwise(
            "embedding dropout gradient",
            local * (shape.element_bytes + MASK_BYTES),
            local * shape.element_bytes,
            Phase.INPUT_GRADIENT,
            releases=("embedding dropout mask",),
        )
    )
    if shape.sequence_parallel:
        order.block(
            collective(shape, "embedding sum", CollectiveKind.ALL_GATHER, Phase.INPUT_GRADIENT)
        )
    table = shape.vocab // shape.tensor * shape.hidden
    table_bytes = table * shape.element_bytes
    whole = shape.activation_bytes
    order.compute(Elementwise("embedding table zero", 0, table_bytes, phase, Kernel.STREAM))
    order.compute(
        Elementwise("embedding scatter", 2 * whole, whole, phase, holds=whole + table_bytes)
    )
    buffer = table * shape.gradient_bytes
    order.compute(
        Elementwise(
            "embedding accumulate",
            table_bytes + buffer,
            buffer,
            phase,
            Kernel.STREAM,
            holds=table_bytes,
        )
    )


def _forward_sum(shape: LayerShape) -> CollectiveKind:
    if shape.sequence_parallel:
        return CollectiveKind.REDUCE_SCATTER
    return CollectiveKind.ALL_REDUCE
