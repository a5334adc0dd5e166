"""The core of self-attention (paper, Figure 3): what selective recompute runs again.

QKᵀ, softmax, softmax dropout, attention over V. The bytes are those of Megatron-LM's kernels:
its causal softmax (`ScaledUpperTriangMaskedSoftmax`) reads only the lower triangle of the
scores and writes all of them. Or all of it in one fused kernel, which keeps no scores.
"""

from __future__ import annotations

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Elementwise, FusedAttention, Gemm, Phase, SavedTensor
from simtrain.workload.shape import FP32_BYTES, MASK_BYTES, LayerShape

OUTPUT = "attention output"
_LOG_SUM_EXP = "softmax log-sum-exp"


def core_forward(order: IssueOrder, shape: LayerShape, *, keep_scores: bool) -> None:
    """Emit the core; without `keep_scores` (selective) only Q, K and V are kept for it."""
    if shape.fused_attention:
        _fused_forward(order, shape, keep_statistics=keep_scores)
    else:
        _unfused_forward(order, shape, keep_scores=keep_scores)


def core_backward(order: IssueOrder, shape: LayerShape) -> None:
    """Gradients of Q, K and V from that of the core's output."""
    if shape.fused_attention:
        _fused_backward(order, shape)
    else:
        _unfused_backward(order, shape)
    projected = 3 * _per_rank(shape) * shape.element_bytes
    order.compute(
        Elementwise(
            "join query, key and value gradients",
            *(projected, projected),
            Phase.INPUT_GRADIENT,
            releases=() if shape.fused_attention else ("value gradient",),
        )
    )


def _fused_forward(order: IssueOrder, shape: LayerShape, *, keep_statistics: bool) -> None:
    """One kernel; its backward reads its output, which the projection keeps anyway."""
    rows = shape.microbatch * shape.local_heads * shape.seq_length
    statistics = (
        shape.saved(OUTPUT, _per_rank(shape)),
        shape.saved(_LOG_SUM_EXP, rows, FP32_BYTES),
    )
    saved = _operands(shape) + (statistics if keep_statistics else ())
    order.compute(_fused(shape, "fused attention", Phase.FORWARD, saved=saved))


def _fused_backward(order: IssueOrder, shape: LayerShape) -> None:
    releases = ("query and key", "value", OUTPUT, _LOG_SUM_EXP)
    phase = Phase.INPUT_GRADIENT
    order.compute(_fused(shape, "fused attention gradient", phase, releases=releases))


def _fused(
    shape: LayerShape,
    name: str,
    phase: Phase,
    *,
    saved: tuple[SavedTensor, ...] = (),
    releases: tuple[str, ...] = (),
) -> FusedAttention:
    return FusedAttention(
        name,
        shape.microbatch * shape.local_heads,
        shape.seq_length,
        shape.head_size,
        phase,
        element_bytes=shape.element_bytes,
        saved=saved,
        releases=releases,
    )


def _operands(shape: LayerShape) -> tuple[SavedTensor, SavedTensor]:
    per_rank = _per_rank(shape)
    return shape.saved("query and key", 2 * per_rank), shape.saved("value", per_rank)


def _per_rank(shape: LayerShape) -> int:
    """Elements of Q, K, V or the output: s · b · h/t."""
    return shape.tokens * shape.hidden // shape.tensor


def _unfused_forward(order: IssueOrder, shape: LayerShape, *, keep_scores: bool) -> None:
    """Emit the four ops; without `keep_scores` (selective) only Q, K and V are kept."""
    s, size = shape.seq_length, shape.element_bytes
    query_key, value = ((tensor,) for tensor in _operands(shape))
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
    merged = size * _per_rank(shape)
    order.compute(Elementwise("merge heads", merged, merged, Phase.FORWARD))


def _unfused_backward(order: IssueOrder, shape: LayerShape) -> None:
    """Gradients of the four ops, last to first; each product has two operands' gradients.

    Those of scores and value come from one node of autograd and are there at the same time. Query,
    key and value are views of one tensor, which goes when none of them is used any more.
    """
    s, d, size = shape.seq_length, shape.head_size, shape.element_bytes
    phase = Phase.INPUT_GRADIENT
    value = (shape.saved("value gradient", _per_rank(shape)),)
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
