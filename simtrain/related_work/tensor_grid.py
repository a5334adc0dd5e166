"""A grid of tensor-parallel ranks on a mesh, and the layers that it splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simtrain.base.mesh import Group, Mesh
from simtrain.related_work.grid_linear import grid_linear
from simtrain.related_work.grid_vectors import grid_look_up, grid_norm, grid_positions
from simtrain.related_work.grids import Axes, GridSplit, Layout
from simtrain.scenario.model import Normalization
from simtrain.workload.ops import Tensor
from simtrain.workload.tape import RankGrid, Tape


@dataclass(frozen=True, slots=True)
class TensorGrid(RankGrid):
    """Tensor-parallel ranks along named axes.

    Args:
        name: of the split.
        axes: names of the axes, that of neighbouring ranks first.
        sizes: ranks along each axis.
        groups: [2 ** axes], the group along each set of axes; axis i counts 2 ** i. Grids of equal
            groups are equal on any mesh, so that passes share recordings.
        layout: of activations and parameters.
    """

    name: str
    axes: Axes
    sizes: tuple[int, ...]
    groups: tuple[Group, ...]
    layout: Layout = field(compare=False, repr=False)

    @classmethod
    def on(cls, mesh: Mesh, split: GridSplit, sizes: Mapping[str, int]) -> TensorGrid:
        """Return the grid with these sizes of its axes, on a mesh."""
        numbers = tuple(sizes.values())
        places = range(len(numbers))
        chosen = (
            tuple(place for place in places if which >> place & 1)
            for which in range(2 ** len(sizes))
        )
        groups = tuple(mesh.grid_group("tp", numbers, levels) for levels in chosen)
        return cls(split.name, tuple(sizes), numbers, groups, split.layout)

    def size(self, axes: Axes) -> int:
        """Number of ranks along these axes."""
        return self.group(axes).num_ranks

    def group(self, axes: Axes) -> Group:
        """The group of ranks that differ only in these axes."""
        return self.groups[sum(1 << self.axes.index(axis) for axis in axes)]

    @property
    def ranks_of_sequences(self) -> int:
        return self.size(self.layout.tokens)

    @property
    def ranks_of_hidden(self) -> int:
        return self.size(self.layout.hidden)

    @property
    def inner(self) -> Group:
        return self.group(self.layout.inner)

    @property
    def everyone(self) -> Group:
        return self.group(self.axes)

    def first_linear(
        self,
        tape: Tape,
        x: Tensor,
        outputs: int,
        name: str,
        *,
        bias: bool,
        adds_bias: bool,
        output_name: str,
        tied: str,
        holds_weight: bool,
        is_output_layer: bool,
    ) -> Tensor:
        return grid_linear(
            tape,
            self,
            x,
            outputs,
            self.layout.logits if is_output_layer else self.layout.first,
            name,
            widths=(self.ranks_of_hidden, tape.microbatch.tensor.num_ranks),
            vector=self.layout.vectors if bias else None,
            adds_bias=adds_bias,
            output_name=output_name,
            tied=tied,
            holds_weight=holds_weight,
        )

    def second_linear(
        self, tape: Tape, x: Tensor, outputs: int | None, name: str, *, bias: bool
    ) -> Tensor:
        ranks = self.ranks_of_hidden
        return grid_linear(
            tape,
            self,
            x,
            outputs or tape.microbatch.hidden * ranks,
            self.layout.second,
            name,
            widths=(tape.microbatch.tensor.num_ranks, ranks),
            vector=self.layout.hidden_vectors if bias else None,
        )

    def norm(self, tape: Tape, x: Tensor, name: str, kind: Normalization, vectors: int) -> Tensor:
        return grid_norm(tape, self, x, name, kind, vectors)

    def look_up(self, tape: Tape, vocab: int, tied: str) -> Tensor:
        return grid_look_up(tape, self, vocab, tied)

    def positions(self, tape: Tape, x: Tensor) -> Tensor:
        return grid_positions(tape, self, x)
