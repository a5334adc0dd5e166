"""Column- and row-parallel linear layers with the collectives f, f̄, g and ḡ.

The order is that of Megatron-LM's `LinearWithGradAccumulationAndAsyncCommunication`: without
sequence parallelism the backward all-reduce hides behind the weight gradient; with it the
all-gather that is redone hides behind the input gradient, and the reduce-scatter behind the
weight gradient. The row-parallel collectives are exposed.
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import (
    Collective,
    CollectiveKind,
    Elementwise,
    Gemm,
    Phase,
    SavedTensor,
)
from simtrain.workload.shape import LayerShape


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight of `inputs` × `outputs` elements on this rank, already divided by t."""

    name: str
    inputs: int
    outputs: int

    def forward(
        self, order: IssueOrder, shape: LayerShape, saved: tuple[SavedTensor, ...] = ()
    ) -> None:
        """Y = X A: tokens × inputs times inputs × outputs."""
        sizes = shape.tokens, self.outputs, self.inputs
        order.compute(shape.product(self.name, *sizes, Phase.FORWARD, weight=True, saved=saved))

    def input_gradient(self, order: IssueOrder, shape: LayerShape) -> None:
        """dX = dY Aᵀ."""
        sizes = shape.tokens, self.inputs, self.outputs
        name = f"{self.name} input gradient"
        order.compute(shape.product(name, *sizes, Phase.INPUT_GRADIENT, weight=True))

    def weight_gradient(self, order: IssueOrder, shape: LayerShape, inputs: str | None) -> None:
        """dA += Xᵀ dY, accumulated into the gradient buffer by the product itself.

        `inputs` names the saved X where it is used no more.
        """
        order.compute(
            Gemm(
                f"{self.name} weight gradient",
                self.outputs,
                self.inputs,
                shape.tokens,
                Phase.WEIGHT_GRADIENT,
                element_bytes=shape.element_bytes,
                output_element_bytes=shape.gradient_bytes,
                accumulate=True,
                releases=(inputs,) if inputs else (),
            )
        )


def bias_gradient(order: IssueOrder, name: str, tokens: int, width: int, size: int) -> None:
    """Sum of the output gradient over its tokens (`grad_output.sum(dim=0)`)."""
    read, write = tokens * width * size, width * size
    order.compute(Elementwise(f"{name} bias gradient", read, write, Phase.WEIGHT_GRADIENT))


def collective(
    shape: LayerShape,
    name: str,
    kind: CollectiveKind,
    phase: Phase,
    *,
    extra: bool = False,
    releases: tuple[str, ...] = (),
) -> Collective:
    """A collective of a whole activation (s · b · h) over the tensor-parallel group."""
    size = shape.activation_bytes
    return Collective(name, kind, size, shape.tensor, phase, extra=extra, releases=releases)


def enter_forward(order: IssueOrder, shape: LayerShape, block: str) -> None:
    """Operator f (nothing) or g (all-gather) before a column-parallel linear."""
    if shape.sequence_parallel:
        order.block(collective(shape, f"{block} g", CollectiveKind.ALL_GATHER, Phase.FORWARD))


def leave_forward(order: IssueOrder, shape: LayerShape, block: str) -> None:
    """Operator f̄ (all-reduce) or ḡ (reduce-scatter) after a row-parallel linear."""
    if shape.sequence_parallel:
        op = collective(shape, f"{block} ḡ", CollectiveKind.REDUCE_SCATTER, Phase.FORWARD)
    else:
        op = collective(shape, f"{block} f̄", CollectiveKind.ALL_REDUCE, Phase.FORWARD)
    order.block(op)


def leave_backward(order: IssueOrder, shape: LayerShape, block: str) -> None:
    """Backward of f̄ (nothing) or of ḡ (all-gather of the gradient), which nothing hides."""
    if shape.sequence_parallel:
        order.block(
            collective(shape, f"{block} ḡ", CollectiveKind.ALL_GATHER, Phase.INPUT_GRADIENT)
        )


def row_parallel_backward(
    order: IssueOrder, shape: LayerShape, linear: Linear, inputs: str | None
) -> None:
    """Both gradients of a row-parallel linear; `inputs` names its saved input, if released."""
    linear.input_gradient(order, shape)
    linear.weight_gradient(order, shape, inputs)


def column_parallel_backward(
    order: IssueOrder,
    shape: LayerShape,
    linear: Linear,
    block: str,
    inputs: str,
    *,
    bias: bool = False,
) -> None:
    """Both gradients of a column-parallel linear, with the collectives hidden behind them."""
    regather = None
    if shape.sequence_parallel:
        regather = order.launch(
            collective(
                shape,
                f"{block} g redone",
                CollectiveKind.ALL_GATHER,
                Phase.WEIGHT_GRADIENT,
                extra=True,
            )
        )
    linear.input_gradient(order, shape)
    order.wait(regather)
    reduce = order.launch(_input_gradient_sum(shape, block))
    linear.weight_gradient(order, shape, inputs)
    if bias:
        bias_gradient(order, linear.name, shape.tokens, linear.outputs, shape.element_bytes)
    order.wait(reduce)


def _input_gradient_sum(shape: LayerShape, block: str) -> Collective:
    if shape.sequence_parallel:
        return collective(shape, f"{block} g", CollectiveKind.REDUCE_SCATTER, Phase.INPUT_GRADIENT)
    return collective(shape, f"{block} f", CollectiveKind.ALL_REDUCE, Phase.INPUT_GRADIENT)
