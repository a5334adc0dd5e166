"""The mesh of ranks: named axes, the groups that communicate along them, and their nodes.

Ranks are numbered in Megatron-LM's order tp-cp-ep-dp-pp (core/parallel_state.py, RankGenerator):
tensor-parallel ranks are neighbours, pipeline stages are farthest apart. They fill the nodes in
that order.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Axis = Literal["tp", "cp", "ep", "dp", "pp"]
AXES: tuple[Axis, ...] = get_args(Axis)
"""All axes, the one of neighbouring ranks first."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate: all along `axes`, or only the two ends of one axis.

    `ranks_per_node` of its `num_ranks` ranks share the fullest node.
    """

    axes: tuple[Axis, ...]
    num_ranks: int
    ranks_per_node: int

    @property
    def inside_one_node(self) -> bool:
        """Whether all ranks of the group share one node."""
        return self.ranks_per_node == self.num_ranks


@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes of the axes, and GPUs of a node."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    gpus_per_node: int = 8

    @property
    def num_ranks(self) -> int:
        """Ranks of the job: one GPU each."""
        return self.size(*AXES)

    def size(self, *axes: Axis) -> int:
        """Ranks along these axes."""
        return math.prod(getattr(self, axis) for axis in axes)

    def stride(self, axis: Axis) -> int:
        """Distance in rank numbers between neighbours along an axis."""
        return self.size(*AXES[: AXES.index(axis)])

    def group(self, *axes: Axis) -> Group:
        """Ranks that differ in these axes only. Of all such groups, the one on the most nodes."""
        return _group(self, axes)

    def ends(self, axis: Axis) -> Group:
        """First and last rank along an axis, such as the stages that hold a tied embedding."""
        return _ends(self, axis)

    def share_node(self, stage: int, other: int) -> bool:
        """Whether all transfers between two pipeline stages stay inside a node."""
        if stage == other:
            return True
        ranks_per_stage = self.stride("pp")
        first = min(stage, other) * ranks_per_stage
        last = (max(stage, other) + 1) * ranks_per_stage - 1
        return first // self.gpus_per_node == last // self.gpus_per_node

    def _coordinates(self, axes: Sequence[Axis]) -> list[int]:
        """Rank numbers of all positions along some axes, with position 0 on the others."""
        steps = [range(0, getattr(self, a) * self.stride(a), self.stride(a)) for a in axes]
        return [sum(position) for position in itertools.product(*reversed(steps))]


@functools.lru_cache(maxsize=4096)
def _group(mesh: Mesh, axes: tuple[Axis, ...]) -> Group:
    return _widest(mesh, axes, mesh._coordinates(axes), mesh._coordinates(_others(axes)))


@functools.lru_cache(maxsize=4096)
def _ends(mesh: Mesh, axis: Axis) -> Group:
    last = (getattr(mesh, axis) - 1) * mesh.stride(axis)
    return _widest(mesh, (axis,), sorted({0, last}), mesh._coordinates(_others((axis,))))


def _others(axes: Sequence[Axis]) -> list[Axis]:
    return [axis for axis in AXES if axis not in axes]


def _widest(
    mesh: Mesh, axes: tuple[Axis, ...], offsets: Sequence[int], starts: Iterable[int]
) -> Group:
    """Of the groups with these offsets from their first ranks, the one on the most nodes.

    All groups work at the same time and the slowest decides: of several on as many nodes, the one
    with the fewest ranks on its fullest node. Groups that start at the same place in a node lie
    alike.
    """
    layouts = (
        Counter((start + offset) // mesh.gpus_per_node for offset in offsets)
        for start in {start % mesh.gpus_per_node for start in starts}
    )
    fullest = min((-len(nodes), max(nodes.values())) for nodes in layouts)[1]
    return Group(axes, len(offsets), fullest)
