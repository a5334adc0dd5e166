"""What a split of the layers' matrices answers: the grid of its ranks, and how arrays move on it.

The tensor-parallel ranks form a grid with named axes. A rank has a part of the tokens and of the
channels of each activation, and a block of each weight. A split describes the products of a linear
layer by the collectives that bring each block where it is multiplied. Everything that others ask of
a split by name is asked here, so that a new one is an object in a file of its own and a line of
`registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, Literal, TypeAlias

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
        last: moves of the result after the last step.
    """

    before: tuple[Move, ...] = ()
    after: tuple[Move, ...] = ()
    last: tuple[Move, ...] = ()


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
        summed: axes along which ranks sum the gradient of the table.
    """

    divided: Axes
    scattered: Axes
    gathered: Axes = ()
    copies: bool = False
    summed: Axes = ()


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


class TensorSplit(ABC):
    """A way to split the matrices of each layer over the tensor-parallel ranks."""

    name: ClassVar[str]
    """What a scenario writes as parallelism.tensor_split."""
    summary: ClassVar[str]
    """What it does, after its name."""
    ranks: ClassVar[str]
    """The numbers of ranks that it allows, in words."""
    layout: ClassVar[Layout]
    """The layout on its grid."""
    has_depth: ClassVar[bool] = False
    """Whether parallelism.tensor_depth decides its grid, too."""

    @abstractmethod
    def sizes(self, num_ranks: int, depth: int | None = None) -> Mapping[str, int] | None:
        """Return the sizes of the axes, that of neighbouring ranks first.

        Args:
            num_ranks: number of tensor-parallel ranks.
            depth: parallelism.tensor_depth; None without.

        Returns:
            Sizes whose product is `num_ranks`; None if so many ranks do not form a grid.
        """
