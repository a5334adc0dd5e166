"""Splits of the layers' matrices over grids of ranks: their layouts, and how arrays move on them.

The tensor-parallel ranks form a grid with named axes. A rank has a part of the tokens and of the
channels of each activation, and a block of each weight. A split describes the products of a linear
layer by the collectives that bring each block where it is multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isqrt, prod
from typing import ClassVar, Literal, TypeAlias

from simtrain.base.mesh import Mesh
from simtrain.scenario.parallelism import Shares, TensorSplit

Axes: TypeAlias = tuple[str, ...]
"""Names of axes of the grid."""
Exchange = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"]
Array = Literal["input", "weight", "output"]
"""The three matrices of a linear layer; in a backward pass also the gradient of one."""


def size_of(sizes: Mapping[str, int], axes: Axes) -> int:
    """Return the number of ranks along some axes of a grid with these sizes."""
    return prod(sizes[axis] for axis in axes)


@dataclass(frozen=True, slots=True)
class Move:
    """A collective of the ranks along some axes on a block, or on a vector of parameters.

    Args:
        exchange: the kind of collective.
        axes: the axes along which its ranks differ.
        array: the array to which the block belongs; a vector of parameters has none of these names,
            so that moves of vectors leave it out.
        copies: the ranks divide the rows of the block, which are copied: collectives move what
            one rank has after what another one has.
    """

    exchange: Exchange
    axes: Axes
    array: Array = "weight"
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Multiplication:
    """How the ranks compute one of the three products of a linear layer.

    Args:
        before: moves of operands, in each step.
        after: moves of the result, in each step.
    """

    before: tuple[Move, ...] = ()
    after: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class LinearSplit:
    """How the ranks compute a linear layer Y = X A.

    Args:
        tokens, inputs, outputs: axes that divide this dimension of the blocks that a rank
            multiplies in one step.
        forward: Y = X A.
        input_gradient: dX = dY Aᵀ.
        weight_gradient: dA = Xᵀ dY.
        steps: axes whose ranks provide the operands in turn, one per step; one step without any.
        saves_blocks: the forward pass saves the blocks that it multiplied, and the backward passes
            do not move them again.
    """

    tokens: Axes
    inputs: Axes
    outputs: Axes
    forward: Multiplication
    input_gradient: Multiplication
    weight_gradient: Multiplication
    steps: Axes = ()
    saves_blocks: bool = False


@dataclass(frozen=True, slots=True)
class VectorSplit:
    """How the ranks hold the vectors of a layer: biases, weights of norms, and positions.

    Args:
        divided: axes that divide a vector, besides those that divide its channels.
        forward: moves that give each rank the vector of its channels.
        backward: moves that sum the gradients.
    """

    divided: Axes = ()
    forward: tuple[Move, ...] = ()
    backward: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSplit:
    """How the ranks look up words in the table of embeddings.

    Each rank looks up words of several ranks in its rows of the table. Their reduce-scatter gives
    each rank its own part of the sum.

    Args:
        divided: axes that divide the table.
        scattered: axes along which ranks reduce and scatter what they have looked up.
        gathered: axes along which ranks gather rows of the table first.
        copies: as in `Move`, for what is reduced and scattered.
    """

    divided: Axes
    scattered: Axes
    gathered: Axes = ()
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of activations and parameters over the axes of a grid.

    Args:
        tokens: axes that divide the sequences of a microbatch.
        hidden: axes that divide the channels of hidden states; norms sum over them.
        inner: axes that divide heads, the channels of the MLP and the vocabulary.
        weights: axes that divide each weight.
        channels: axes whose ranks together divide the channels of each matrix.
        vocabulary: axes whose ranks together divide the vocabulary.
        first: the layer from hidden states into attention or MLP.
        second: the layer back to hidden states.
        logits: the output layer.
        vectors: biases of first layers.
        hidden_vectors: weights of norms, biases of second layers, and position embeddings.
        table: the table of embeddings.
    """

    tokens: Axes
    hidden: Axes
    inner: Axes
    weights: Axes
    channels: Axes
    vocabulary: Axes
    first: LinearSplit
    second: LinearSplit
    logits: LinearSplit
    table: TableSplit
    vectors: VectorSplit = field(default_factory=VectorSplit)
    hidden_vectors: VectorSplit = field(default_factory=VectorSplit)


class GridSplit(TensorSplit):
    """A split that its layout describes."""

    layout: ClassVar[Layout]
    """The layout on its grid."""

    def shares(self, sizes: Mapping[str, int]) -> Shares:
        layout = self.layout
        axes = layout.tokens, layout.inner, layout.channels, layout.vocabulary
        return Shares(*(size_of(sizes, each) for each in axes))

    def grid(self, mesh: Mesh, sizes: Mapping[str, int]) -> object:
        from simtrain.related_work.tensor_grid import TensorGrid  # it imports the scenario

        return TensorGrid.on(mesh, self, sizes)


# ------------------------------------------------------------------------------
# Activations split along the hidden dimension, throughout the network.
#
# Sources: Karakus et al. 2021, "Amazon SageMaker Model Parallelism" (arXiv 2111.05972); Xu et al.
# 2021, "GSPMD" (arXiv 2105.04663), with hidden states [B, S, M] split along M. Weights are split
# as in Megatron-LM. Ranks gather the channels of hidden states before the first layer of
# attention or MLP, and reduce and scatter those of the output of the second: as many bytes as
# sequence parallelism moves. In addition, each norm sums over the ranks.

_HIDDEN = ("hidden",)
_FIRST = LinearSplit(
    tokens=(),
    inputs=(),
    outputs=_HIDDEN,
    forward=Multiplication(before=(Move("all_gather", _HIDDEN, "input", copies=True),)),
    input_gradient=Multiplication(after=(Move("reduce_scatter", _HIDDEN, "input", copies=True),)),
    weight_gradient=Multiplication(before=(Move("all_gather", _HIDDEN, "input", copies=True),)),
)
_SECOND = LinearSplit(
    tokens=(),
    inputs=_HIDDEN,
    outputs=(),
    forward=Multiplication(after=(Move("reduce_scatter", _HIDDEN, "output", copies=True),)),
    input_gradient=Multiplication(before=(Move("all_gather", _HIDDEN, "output", copies=True),)),
    weight_gradient=Multiplication(),
)


class Hidden(GridSplit):
    """Each rank has all tokens, with its part of the channels."""

    name = "hidden"
    summary = (
        "splits all activations along the hidden dimension, so that each norm sums over the ranks "
        "(SageMaker, GSPMD)"
    )
    ranks = "2 or more"
    layout = Layout(
        tokens=(),
        hidden=_HIDDEN,
        inner=_HIDDEN,
        weights=_HIDDEN,
        channels=_HIDDEN,
        vocabulary=_HIDDEN,
        first=_FIRST,
        second=_SECOND,
        logits=_FIRST,
        table=TableSplit(divided=_HIDDEN, scattered=_HIDDEN, copies=True),
    )

    def sizes(self, num_ranks: int) -> Mapping[str, int] | None:
        return {"hidden": num_ranks} if num_ranks > 1 else None


# ------------------------------------------------------------------------------
# The two-dimensional split of Optimus: every matrix in q x q blocks, multiplied by SUMMA.
#
# Sources: Xu, Li et al. 2021, "An Efficient 2D Method for Training Super-Large Deep Learning
# Models" (arXiv 2104.05343); van de Geijn and Watts 1997 (SUMMA); Colossal-AI's
# nn/layer/parallel_2d. Rank (i, j) of q² ranks holds block (i, j) of each matrix: sequences i and
# channels j of an activation. Each product takes q steps (Algorithms 1 to 3 of the paper):
#
# - C = A B: in step l, blocks (i, l) of A are broadcast along rows and (l, j) of B along columns.
# - C = A Bᵀ: blocks (l, j) of B are broadcast along columns; the products are reduced along rows.
# - C = Aᵀ B: blocks (i, l) of A are broadcast along rows; the products are reduced along columns.
#
# So a forward pass of GPT's layer broadcasts (7 bsh + 12 h²) / q elements to each rank, and a
# backward pass broadcasts or reduces twice as many; a tree sends each log2 q times.

ALONG_ROW, ALONG_COLUMN = ("column",), ("row",)
"""The ranks of a row differ in their column, and those of a column in their row."""


_INPUTS, _WEIGHTS = Move("broadcast", ALONG_ROW, "input"), Move("broadcast", ALONG_COLUMN)
_OUTPUTS, _SUMS = Move("broadcast", ALONG_ROW, "output"), Move("reduce", ALONG_COLUMN)
_SUMMA = LinearSplit(
    tokens=ALONG_COLUMN,
    inputs=ALONG_ROW,
    outputs=ALONG_ROW,
    forward=Multiplication(before=(_INPUTS, _WEIGHTS)),
    input_gradient=Multiplication(before=(_WEIGHTS,), after=(Move("reduce", ALONG_ROW, "input"),)),
    weight_gradient=Multiplication(before=(_INPUTS,), after=(_SUMS,)),
    steps=ALONG_COLUMN,
)
_SUMMA_LOGITS = replace(  # Y = X Eᵀ with the table of embeddings
    _SUMMA,
    forward=Multiplication(before=(_WEIGHTS,), after=(Move("reduce", ALONG_ROW, "output"),)),
    input_gradient=Multiplication(before=(_OUTPUTS, _WEIGHTS)),
    weight_gradient=Multiplication(before=(_OUTPUTS,), after=(_SUMS,)),
)
_SUMMA_VECTORS = VectorSplit(
    divided=ALONG_COLUMN,
    forward=(Move("all_gather", ALONG_COLUMN),),
    backward=(Move("reduce_scatter", ALONG_COLUMN),),
)


class Summa(GridSplit):
    """Blocks of q x q ranks; the ranks of a column gather vectors of parameters."""

    name = "2d"
    summary = (
        "splits every matrix into q x q blocks for q² ranks, multiplied by SUMMA's broadcasts and "
        "reductions; rows of ranks divide the sequences of a microbatch (Optimus, Colossal-AI)"
    )
    ranks = "q² for a whole q of 2 or more"
    layout = Layout(
        tokens=ALONG_COLUMN,
        hidden=ALONG_ROW,
        inner=ALONG_ROW,
        weights=("row", "column"),
        channels=("row", "column"),
        vocabulary=ALONG_ROW,
        first=_SUMMA,
        second=_SUMMA,
        logits=_SUMMA_LOGITS,
        table=TableSplit(divided=("row", "column"), scattered=ALONG_COLUMN),
        vectors=_SUMMA_VECTORS,
        hidden_vectors=_SUMMA_VECTORS,
    )

    def sizes(self, num_ranks: int) -> Mapping[str, int] | None:
        side = isqrt(num_ranks)
        return {"column": side, "row": side} if side > 1 and side**2 == num_ranks else None


# ------------------------------------------------------------------------------
# The three-dimensional split: a cube of q x q x q ranks, each of which multiplies one block.
#
# Sources: Bian et al. 2021, "Maximizing Parallelism in Distributed Training for Huge Neural
# Networks" (arXiv 2105.14450); Agarwal et al. 1995 (3D products); Colossal-AI's
# nn/layer/parallel_3d and its Initializer_3D. Before Y = X A, ranks gather X along one axis and A
# along another; after it they reduce and scatter Y along the third. The second layer of attention
# or MLP swaps the axes of its input and of its output, so that hidden states return to their
# ranks. The gathered X and A are saved for the backward pass (`_Linear3D`), which gathers the
# gradient of Y and reduces and scatters those of X and A. Each rank multiplies 1/q³ of a product
# at once. Ranks with equal channels hold equal vectors of parameters, and sum their gradients.
#
# So all ranks together send 2 (q - 1) (S_X + S_A + S_Y) elements for a forward and a backward
# pass.

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


class Cube(GridSplit):
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

    def sizes(self, num_ranks: int) -> Mapping[str, int] | None:
        side = round(num_ranks ** (1 / 3))
        if side < 2 or side**3 != num_ranks:
            return None
        return {"weight": side, "input": side, "output": side}
