"""How tensor-parallel ranks split the matrices of each layer, if not by columns and rows.

Megatron-LM's split by columns and rows is none of them: it is what `workload.blocks` does without.
A split is a part of an installed package, such as the guest `related_work`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from simtrain.base.mesh import Mesh
from simtrain.base.plug_ins import Parts


class Shares(NamedTuple):
    """Numbers of ranks that divide each dimension.

    Args:
        sequences: the sequences of a microbatch.
        inner: heads, the channels of the MLP and the logits.
        channels: the channels of each matrix, together.
        vocabulary: the vocabulary.
    """

    sequences: int
    inner: int
    channels: int
    vocabulary: int


class TensorSplit(ABC):
    """A way to split the matrices of each layer over the tensor-parallel ranks."""

    name: ClassVar[str]
    """What a scenario writes as parallelism.tensor_split."""
    summary: ClassVar[str]
    """What it does, after its name."""
    ranks: ClassVar[str]
    """The numbers of ranks that it allows, in words."""
    has_depth: ClassVar[bool] = False
    """Whether parallelism.tensor_depth decides its grid, too."""

    @abstractmethod
    def sizes(self, num_ranks: int, depth: int | None = None) -> Mapping[str, int] | None:
        """Return the sizes of the axes of its grid, that of neighbouring ranks first.

        Args:
            num_ranks: number of tensor-parallel ranks.
            depth: parallelism.tensor_depth; None without.

        Returns:
            Sizes whose product is `num_ranks`; None if so many ranks do not form a grid.
        """

    @abstractmethod
    def shares(self, sizes: Mapping[str, int]) -> Shares:
        """Return how many ranks divide what, on a grid of these sizes."""

    @abstractmethod
    def grid(self, mesh: Mesh, sizes: Mapping[str, int]) -> object:
        """Return its ranks on a mesh (`workload.rank_grid.RankGrid`)."""


TENSOR_SPLITS: Parts[TensorSplit] = Parts("tensor_splits", TensorSplit, ())
