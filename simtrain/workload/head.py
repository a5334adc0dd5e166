"""The head of the last stage: final layer norm, output layer, vocabulary-parallel cross entropy.

Sources: Megatron-LM's `parallel_lm_logits` and `vocab_parallel_cross_entropy`, whose three
all-reduces of s · b fp32 numbers are the maximum, the target's logit and the sum of exponentials.
"""

from __future__ import annotations

from simtrain.workload.issue import IssueOrder
from simtrain.workload.layer import layer_norm_backward, layer_norm_forward
from simtrain.workload.linear import Linear, column_parallel_backward, enter_forward
from simtrain.workload.ops import Collective, CollectiveKind, Elementwise, Phase
from simtrain.workload.shape import FP32_BYTES, LayerShape


def output_layer(shape: LayerShape) -> Linear:
    """Column-parallel projection to the vocabulary: h × v/t."""
    return Linear("logits", shape.hidden, shape.vocab // shape.tensor)


def head_forward(order: IssueOrder, shape: LayerShape) -> None:
    """From the last layer's output to the loss."""
    layer_norm_forward(order, shape, "final layer norm")
    enter_forward(order, shape, "output layer")
    saved = shape.saved("output layer input", shape.local_tokens * shape.hidden)
    output_layer(shape).forward(order, shape, (saved,))
    _cross_entropy_forward(order, shape)


def head_backward(order: IssueOrder, shape: LayerShape) -> None:
    """From the loss to the gradient of the last layer's output."""
    logits = _num_logits(shape)
    phase = Phase.INPUT_GRADIENT
    fp32, size = logits * FP32_BYTES, logits * shape.element_bytes
    # The gradient overwrites the softmax that it is computed from.
    order.compute(Elementwise("cross entropy gradient", fp32, fp32, phase, holds=0))
    order.compute(Elementwise("logits from fp32", fp32, size, phase, releases=("logits",)))
    linear, inputs = output_layer(shape), "output layer input"
    column_parallel_backward(order, shape, linear, "output layer", inputs)
    layer_norm_backward(order, shape, "final layer norm", residual=False)


def _cross_entropy_forward(order: IssueOrder, shape: LayerShape) -> None:
    """The logits stay in the compute type and in fp32 until the loss is there."""
    logits = _num_logits(shape)
    fp32 = logits * FP32_BYTES
    given = logits * shape.element_bytes + fp32
    shifted = given + fp32
    steps = (
        ("logits to fp32", logits * shape.element_bytes, fp32, given, None),
        ("logits maximum", fp32, 0, given, "maximum"),
        ("logits minus maximum", fp32, fp32, shifted, "target"),
        ("exponentials", fp32, fp32, shifted, None),
        ("sum of exponentials", fp32, 0, shifted, "sum"),
        ("softmax of logits", fp32, fp32, shifted, None),
    )
    for name, read, write, holds, reduced in steps:
        kept = (shape.saved("logits", logits, FP32_BYTES),) if name == "softmax of logits" else ()
        order.compute(Elementwise(name, read, write, Phase.FORWARD, saved=kept, holds=holds))
        if reduced:
            order.block(_token_sum(shape, f"cross entropy {reduced}"))


def _token_sum(shape: LayerShape, name: str) -> Collective:
    return Collective(
        name,
        CollectiveKind.ALL_REDUCE,
        shape.tokens * FP32_BYTES,
        shape.tensor,
        Phase.FORWARD,
    )


def _num_logits(shape: LayerShape) -> int:
    return shape.tokens * (shape.vocab // shape.tensor)
