"""The three-dimensional split: a cube of q x q x q ranks, each of which multiplies one block.

Sources: Bian et al. 2021, "Maximizing Parallelism in Distributed Training for Huge Neural Networks"
(arXiv 2105.14450); Agarwal et al. 1995 (3D products); Colossal-AI's nn/layer/parallel_3d and its
Initializer_3D. Before Y = X A, ranks gather X along one axis and A along another; after it they
reduce and scatter Y along the third. The second layer of attention or MLP swaps the axes of its
input and of its output, so that hidden states return to their ranks. The gathered X and A are saved
for the backward pass (`_Linear3D`), which gathers the gradient of Y and reduces and scatters those
of X and A. Each rank multiplies 1/q³ of a product at once. Ranks with equal channels hold equal
vectors of parameters, and sum their gradients.

So all ranks together send 2 (q - 1) (S_X + S_A + S_Y) elements for a forward and a backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from simtrain.scenario.tensor_splits.split import (
    Axes,
    Layout,
    LinearSplit,
    Move,
    Multiplication,
    TableSplit,
    TensorSplit,
    VectorSplit,
)

_WEIGHT, _INPUT, _OUTPUT = ("weight",), ("input",), ("output",)


def _linear(along_input: Axes, along_output: Axes) -> LinearSplit:
    """Return Y = X A whose ranks gather X and scatter Y along these axes."""
    return LinearSplit(
        tokens=_WEIGHT,
        inputs=along_output,
        outputs=along_input,
        forward=Multiplication(
            before=(Move("all_gather", along_input, "input"), Move("all_gather", _WEIGHT)),
            after=(Move("reduce_scatter", along_output, "output"),),
        ),
        input_gradient=Multiplication(
            before=(Move("all_gather", along_output, "output"),),
            after=(Move("reduce_scatter", along_input, "input"),),
        ),
        weight_gradient=Multiplication(after=(Move("reduce_scatter", _WEIGHT),)),
        saves_blocks=True,
    )


class Cube(TensorSplit):
    """Blocks of q x q x q ranks."""

    name = "3d"
    summary = (
        "splits every matrix over q³ ranks, which gather its input and its weight along two axes "
        "and scatter its output along the third (Colossal-AI)"
    )
    ranks = "q³ for a whole q of 2 or more"
    layout = Layout(
        tokens=(*_WEIGHT, *_INPUT),
        hidden=_OUTPUT,
        inner=_INPUT,
        weights=(*_WEIGHT, *_INPUT, *_OUTPUT),
        channels=(*_WEIGHT, *_INPUT),
        vocabulary=(*_WEIGHT, *_INPUT),
        first=_linear(_INPUT, _OUTPUT),
        second=_linear(_OUTPUT, _INPUT),
        logits=_linear(_INPUT, _OUTPUT),
        table=TableSplit(divided=(*_WEIGHT, *_INPUT, *_OUTPUT), scattered=_INPUT, gathered=_WEIGHT),
        vectors=VectorSplit(backward=(Move("all_reduce", (*_WEIGHT, *_OUTPUT)),)),
        hidden_vectors=VectorSplit(backward=(Move("all_reduce", (*_WEIGHT, *_INPUT)),)),
    )

    def sizes(self, num_ranks: int, depth: int | None = None) -> Mapping[str, int] | None:
        """Return q ranks along each axis."""
        side = round(num_ranks ** (1 / 3))
        if side < 2 or side**3 != num_ranks:
            return None
        return {"weight": side, "input": side, "output": side}
