"""The core of self-attention (paper, Figure 3): what selective recompute runs again.

QKᵀ, softmax, softmax dropout, attention over V. The bytes are those of Megatron-LM's kernels:
its causal softmax (`ScaledUpperTriangMaskedSoftmax`) reads only the lower triangle of the
scores and writes all of them.
"""

from __future__ import annotations

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Elementwise, Gemm, Phase, SavedTensor
from simtrain.workload.shape import MASK_BYTES, LayerShape


def core_forward(order: IssueOrder, shape: LayerShape, *, keep_scores: bool) -> None:
    """Emit the four ops; without `keep_scores` (selective) only Q, K and V are kept."""
    s, size = shape.seq_length, shape.element_bytes
    per_head = shape.tokens * shape.hidden // shape.tensor
    query_key = (shape.saved("query and key", 2 * per_head),)
    value = (shape.saved("value", per_head),)
    softmax = (shape.saved("softmax output", shape.scores),)
    mask = (shape.saved("softmax dropout mask", shape.scores, MASK_BYTES),)
    dropped = (shape.saved("softmax dropout output", shape.scores),)
    kept = (softmax, mask, dropped) if keep_scores else ((), (), ())

    order.compute(_per_head(shape, "QKᵀ", s, s, shape.head_size, Phase.FORWARD, saved=query_key))
    order.compute(
        Elementwise(
            "softmax",
            size * shape.scores // 2,
            size * shape.scores,
            Phase.FORWARD,
            saved=kept[0],
            holds=2 * size * shape.scores,
        )
    )
    order.compute(
        Elementwise(
            "softmax dropout",
            size * shape.scores,
            (size + MASK_BYTES) * shape.scores,
            Phase.FORWARD,
            saved=kept[1],
        )
    )
    order.compute(
        _per_head(
            shape, "attention over V", s, shape.head_size, s, Phase.FORWARD, saved=value + kept[2]
        )
    )
    order.compute(Elementwise("merge heads", size * per_head, size * per_head, Phase.FORWARD))


def core_backward(order: IssueOrder, shape: LayerShape) -> None:
    """Gradients of the four ops, last to first; each product has two operands' gradients.

    Those of scores and value come from one node of autograd and are there at the same time. Query,
    key and value are views of one tensor, which goes when none of them is used any more.
    """
    s, d, size = shape.seq_length, shape.head_size, shape.element_bytes
    phase = Phase.INPUT_GRADIENT
    value = (shape.saved("value gradient", shape.tokens * shape.hidden // shape.tensor),)
    order.compute(_per_head(shape, "attention over V scores gradient", s, s, d, phase, saved=value))
    name, released = "attention over V value gradient", ("softmax dropout output",)
    order.compute(_per_head(shape, name, s, d, s, phase, releases=released))
    order.compute(
        Elementwise(
            "softmax dropout gradient",
            (size + MASK_BYTES) * shape.scores,
            size * shape.scores,
            phase,
            releases=("softmax dropout mask",),
        )
    )
    # Output and its gradient are read below the diagonal only; the result overwrites the gradient.
    order.compute(
        Elementwise(
            "softmax gradient",
            *(size * shape.scores, size * shape.scores),
            phase,
            releases=("softmax output",),
            holds=2 * size * shape.scores,
        )
    )
    order.compute(_per_head(shape, "QKᵀ query gradient", s, d, s, phase))
    views = ("query and key", "value")
    order.compute(_per_head(shape, "QKᵀ key gradient", s, d, s, phase, releases=views))
    projected = 3 * shape.tokens * shape.hidden // shape.tensor * size
    order.compute(
        Elementwise(
            "join query, key and value gradients",
            *(projected, projected),
            phase,
            releases=("value gradient",),
        )
    )


def _per_head(
    shape: LayerShape,
    name: str,
    m: int,
    n: int,
    k: int,
    phase: Phase,
    *,
    saved: tuple[SavedTensor, ...] = (),
    releases: tuple[str, ...] = (),
) -> Gemm:
    batch = shape.microbatch * shape.local_heads
    return shape.product(name, m, n, k, phase, batch=batch, saved=saved, releases=releases)
