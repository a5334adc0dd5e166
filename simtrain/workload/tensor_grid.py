"""The grid of tensor-parallel ranks on a mesh, if they split the matrices of layers."""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.base.mesh import Group, Mesh
from simtrain.scenario import Parallelism
from simtrain.scenario.tensor_splits import TENSOR_SPLITS
from simtrain.scenario.tensor_splits.split import Axes, Layout, TensorSplit


@dataclass(frozen=True, slots=True)
class TensorGrid:
    """Tensor-parallel ranks along named axes.

    Args:
        name: of the split (`TENSOR_SPLITS`).
        axes: names of the axes, that of neighbouring ranks first.
        sizes: ranks along each axis.
        mesh: all ranks.
    """

    name: str
    axes: Axes
    sizes: tuple[int, ...]
    mesh: Mesh

    @classmethod
    def of(cls, parallelism: Parallelism, mesh: Mesh) -> TensorGrid | None:
        """Return the grid of a scenario; None if ranks split layers by columns and rows."""
        sizes = parallelism.grid_sizes
        if sizes is None:
            return None
        return cls(parallelism.tensor_split, tuple(sizes), tuple(sizes.values()), mesh)

    @property
    def split(self) -> TensorSplit:
        """How its ranks split matrices."""
        return TENSOR_SPLITS[self.name]

    @property
    def layout(self) -> Layout:
        """The layout of activations and parameters."""
        return self.split.layout

    def size(self, axes: Axes) -> int:
        """Number of ranks along these axes."""
        number = 1
        for axis, size in zip(self.axes, self.sizes, strict=True):
            number *= size if axis in axes else 1
        return number

    def group(self, axes: Axes) -> Group:
        """The group of ranks that differ only in these axes."""
        levels = tuple(place for place, axis in enumerate(self.axes) if axis in axes)
        return self.mesh.grid_group("tp", self.sizes, levels)
