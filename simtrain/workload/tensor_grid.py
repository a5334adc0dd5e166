"""The grid of tensor-parallel ranks on a mesh, if they split the matrices of layers."""

from __future__ import annotations

from collections.abc import Mapping
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
        groups: [2 ** axes], the group along each set of axes; axis i counts 2 ** i. Grids of equal
            groups are equal on any mesh, so that passes share recordings.
    """

    name: str
    axes: Axes
    sizes: tuple[int, ...]
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, parallelism: Parallelism, mesh: Mesh) -> TensorGrid | None:
        """Return the grid of a scenario; None if ranks split layers by columns and rows."""
        sizes = parallelism.grid_sizes
        return cls.on(mesh, parallelism.tensor_split, sizes) if sizes is not None else None

    @classmethod
    def on(cls, mesh: Mesh, name: str, sizes: Mapping[str, int]) -> TensorGrid:
        """Return the grid with these sizes of its axes, on a mesh."""
        numbers = tuple(sizes.values())
        places = range(len(numbers))
        chosen = (
            tuple(place for place in places if which >> place & 1)
            for which in range(2 ** len(sizes))
        )
        groups = tuple(mesh.grid_group("tp", numbers, levels) for levels in chosen)
        return cls(name, tuple(sizes), numbers, groups)

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
        return self.group(axes).num_ranks

    def group(self, axes: Axes) -> Group:
        """The group of ranks that differ only in these axes."""
        return self.groups[sum(1 << self.axes.index(axis) for axis in axes)]
