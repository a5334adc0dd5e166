"""One transformer layer, forward and backward, as the paper draws it (Figures 2 to 6)."""

from __future__ import annotations

from simtrain.workload.attention import OUTPUT, core_backward, core_forward
from simtrain.workload.issue import IssueOrder
from simtrain.workload.linear import (
    Linear,
    bias_gradient,
    column_parallel_backward,
    enter_forward,
    leave_backward,
    leave_forward,
    row_parallel_backward,
)
from simtrain.workload.ops import Elementwise, Phase, SavedTensor
from simtrain.workload.shape import MASK_BYTES, LayerShape

_RESIDUAL_GRADIENT = "gradient around the block"


def query_key_value(shape: LayerShape) -> Linear:
    """Column-parallel projection to Q, K and V: h × 3h/t."""
    return Linear("QKV", shape.hidden, 3 * shape.hidden // shape.tensor)


def projection(shape: LayerShape) -> Linear:
    """Row-parallel output projection of attention: h/t × h."""
    return Linear("projection", shape.hidden // shape.tensor, shape.hidden)


def expansion(shape: LayerShape) -> Linear:
    """Column-parallel first product of the MLP: h × 4h/t."""
    return Linear("h→4h", shape.hidden, shape.ffn // shape.tensor)


def contraction(shape: LayerShape) -> Linear:
    """Row-parallel second product of the MLP: 4h/t × h."""
    return Linear("4h→h", shape.ffn // shape.tensor, shape.hidden)


def layer_forward(order: IssueOrder, shape: LayerShape, *, keep_scores: bool) -> None:
    """Emit a layer's forward pass; without `keep_scores` (selective) the scores are dropped."""
    _attention_forward(order, shape, keep_scores=keep_scores)
    _mlp_forward(order, shape)


def layer_backward(order: IssueOrder, shape: LayerShape, *, scores_again: bool) -> None:
    """Emit a layer's backward pass; `scores_again` (selective) computes dropped scores first."""
    _mlp_backward(order, shape)
    _attention_backward(order, shape, scores_again=scores_again)


def _attention_forward(order: IssueOrder, shape: LayerShape, *, keep_scores: bool) -> None:
    linear, size = query_key_value(shape), shape.element_bytes
    layer_norm_forward(order, shape, "attention layer norm")
    enter_forward(order, shape, "attention")
    linear.forward(order, shape, (_norm_output(shape, "attention"),))
    biased = shape.tokens * linear.outputs * size
    order.compute(Elementwise("QKV bias", biased, biased, Phase.FORWARD))
    core_forward(order, shape, keep_scores=keep_scores)
    context = shape.saved(OUTPUT, shape.tokens * shape.hidden // shape.tensor)
    projection(shape).forward(order, shape, (context,))
    leave_forward(order, shape, "attention")
    _dropout_residual_forward(order, shape, "attention")


def _mlp_forward(order: IssueOrder, shape: LayerShape) -> None:
    layer_norm_forward(order, shape, "MLP layer norm")
    enter_forward(order, shape, "MLP")
    expansion(shape).forward(order, shape, (_norm_output(shape, "MLP"),))
    wide = shape.tokens * shape.ffn // shape.tensor
    wide_bytes = wide * shape.element_bytes
    order.compute(
        Elementwise(
            "bias and GeLU",
            wide_bytes,
            wide_bytes,
            Phase.FORWARD,
            saved=(shape.saved("GeLU input", wide),),
        )
    )
    contraction(shape).forward(order, shape, (shape.saved("GeLU output", wide),))
    leave_forward(order, shape, "MLP")
    _dropout_residual_forward(order, shape, "MLP")


def _mlp_backward(order: IssueOrder, shape: LayerShape) -> None:
    _dropout_residual_backward(order, shape, "MLP")
    leave_backward(order, shape, "MLP")
    row_parallel_backward(order, shape, contraction(shape), "GeLU output")
    wide = expansion(shape).outputs
    wide_bytes = shape.tokens * wide * shape.element_bytes
    order.compute(
        Elementwise(
            "bias and GeLU gradient",
            2 * wide_bytes,
            wide_bytes,
            Phase.INPUT_GRADIENT,
            releases=("GeLU input",),
        )
    )
    bias_gradient(order, "h→4h", shape.tokens, wide, shape.element_bytes)
    column_parallel_backward(order, shape, expansion(shape), "MLP", "MLP layer norm output")
    layer_norm_backward(order, shape, "MLP layer norm", residual=True)


def _attention_backward(order: IssueOrder, shape: LayerShape, *, scores_again: bool) -> None:
    _dropout_residual_backward(order, shape, "attention")
    leave_backward(order, shape, "attention")
    # A fused core reads its output again, unless it is run again and then has another.
    stays = shape.fused_attention and not scores_again
    row_parallel_backward(order, shape, projection(shape), None if stays else OUTPUT)
    if scores_again:
        with order.recomputing(shape.activation_bytes // shape.tensor):
            core_forward(order, shape, keep_scores=True)
    core_backward(order, shape)
    linear, inputs = query_key_value(shape), "attention layer norm output"
    column_parallel_backward(order, shape, linear, "attention", inputs, bias=True)
    layer_norm_backward(order, shape, "attention layer norm", residual=True)


def layer_norm_forward(order: IssueOrder, shape: LayerShape, name: str) -> None:
    """A layer norm over this rank's tokens; keeps its input."""
    elements = shape.local_tokens * shape.hidden
    num_bytes = elements * shape.element_bytes
    order.compute(
        Elementwise(
            name,
            num_bytes,
            num_bytes,
            Phase.FORWARD,
            saved=(shape.saved(f"{name} input", elements),),
        )
    )


def layer_norm_backward(order: IssueOrder, shape: LayerShape, name: str, *, residual: bool) -> None:
    """Gradient of a layer norm, and its sum with the gradient that came around the block."""
    num_bytes = shape.local_tokens * shape.hidden * shape.element_bytes
    phase = Phase.INPUT_GRADIENT
    order.compute(
        Elementwise(
            f"{name} gradient", 2 * num_bytes, num_bytes, phase, releases=(f"{name} input",)
        )
    )
    if residual:
        around = (_RESIDUAL_GRADIENT,)
        order.compute(
            Elementwise(f"{name} residual sum", 2 * num_bytes, num_bytes, phase, releases=around)
        )


def _dropout_residual_forward(order: IssueOrder, shape: LayerShape, block: str) -> None:
    """Bias, dropout and residual in one kernel (Megatron's `bias_dropout_add_fused_train`)."""
    elements, size = shape.local_tokens * shape.hidden, shape.element_bytes
    order.compute(
        Elementwise(
            f"{block} dropout and residual",
            2 * elements * size,
            elements * (size + MASK_BYTES),
            Phase.FORWARD,
            saved=(shape.saved(f"{block} dropout mask", elements, MASK_BYTES),),
            # Of what it reads, the residual is the input of the block's layer norm, and saved.
            holds=elements * (2 * size + MASK_BYTES),
        )
    )


def _dropout_residual_backward(order: IssueOrder, shape: LayerShape, block: str) -> None:
    elements, size = shape.local_tokens * shape.hidden, shape.element_bytes
    order.compute(
        Elementwise(
            f"{block} dropout gradient",
            elements * (size + MASK_BYTES),
            elements * size,
            Phase.INPUT_GRADIENT,
            saved=(shape.saved(_RESIDUAL_GRADIENT, elements),),
            releases=(f"{block} dropout mask",),
        )
    )
    bias_gradient(order, f"{block} dropout", shape.local_tokens, shape.hidden, size)


def _norm_output(shape: LayerShape, block: str) -> SavedTensor:
    """Input of a column-parallel linear: whole, or this rank's part under sequence parallelism."""
    return shape.saved(f"{block} layer norm output", shape.local_tokens * shape.hidden)
