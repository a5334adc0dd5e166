"""The mesh of ranks: named axes, communication groups along them, and their placement on nodes.

Ranks are numbered along the axes, by default in Megatron-LM's order tp-cp-ep-dp-pp
(core/parallel_state.py, RankGenerator): tensor-parallel ranks are neighbours, pipeline stages are
farthest apart. Ranks fill nodes in order of their numbers, and nodes fill the wider levels of the
network (leaf, spine) in the same way.

A node here is an NVLink domain: as in NCCL, an NVLink domain that spans several nodes is one node.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, get_args

from simtrain.base.values import dataclass, replace

Axis = Literal["tp", "cp", "ep", "dp", "pp"]
AXES: tuple[Axis, ...] = get_args(Axis)
"""All axes in Megatron-LM's order, the axis of neighbouring ranks first."""
Domains: TypeAlias = int | tuple[int, ...]
"""GPUs per node, or per node and per unit of each wider network level, ascending."""


@dataclass(frozen=True, slots=True)
class Group:
    """A communication group: all ranks along `axes`, or the two ends of one axis.

    Args:
        axes: mesh axes along which the group's ranks differ.
        num_ranks: size of the group.
        ranks_per_node: ranks on the fullest node.
        ranks_per_level: ranks in the fullest unit of each wider level.
        joins_shards: whether its ranks hold equal shards of different shard groups
            (`Mesh.replicate_group`).
    """

    axes: tuple[Axis, ...]
    num_ranks: int
    ranks_per_node: int
    ranks_per_level: tuple[int, ...] = ()
    joins_shards: bool = False

    @property
    def inside_one_node(self) -> bool:
        return self.ranks_per_node == self.num_ranks

    @property
    def num_nodes(self) -> int:
        return math.ceil(self.num_ranks / self.ranks_per_node)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Sizes of the axes and the topology of the cluster.

    Args:
        tp, cp, ep, dp, pp: number of ranks along each axis.
        gpus_per_node: GPUs in an NVLink domain.
        gpus_per_level: GPUs per unit of each wider network level, ascending.
        order: order of the axes in rank numbers, the axis of neighbouring ranks first.
        copies: copies of the model in each pipeline: 1, or 2 of which the second one begins at the
            last stage. Stages at equal distances from the two ends hold the same parameters.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    gpus_per_node: int = 8
    gpus_per_level: tuple[int, ...] = ()
    order: tuple[Axis, ...] = AXES
    copies: int = 1

    @property
    def num_ranks(self) -> int:
        return self.size(*AXES)

    def size(self, *axes: Axis) -> int:
        """Number of ranks along these axes."""
        return math.prod(getattr(self, axis) for axis in axes)

    def stride(self, axis: Axis) -> int:
        """Distance in rank numbers between neighbours along an axis."""
        return self.size(*self.order[: self.order.index(axis)])

    def group(self, *axes: Axis) -> Group:
        """The group of ranks that differ only in these axes; the slowest one, on the most nodes."""
        return _group(self, axes)

    def split_group(self, axis: Axis, num_inner: int) -> tuple[Group, Group]:
        """Cut an axis into parts of `num_inner` neighbours.

        Returns the group of the ranks in one part, and the group of ranks at equal positions in
        each part.
        """
        return _split_group(self, axis, num_inner)

    @property
    def data_group(self) -> Group:
        """Ranks with the same parameters, which reduce their gradients together.

        Megatron-LM's data-parallel group "with context parallelism".
        """
        return _shard_groups(self, self.copies * self.size("cp", "dp"))[0]

    def shard_group(self, num_ranks: int) -> Group:
        """The group of `num_ranks` neighbours in a data group that shard model states.

        `num_ranks` divides the size of the data group.
        """
        return _shard_groups(self, num_ranks)[0]

    def replicate_group(self, num_ranks: int) -> Group:
        return _shard_groups(self, num_ranks)[1]

    def instance_group(self, num_ranks: int) -> Group:
        """The group of all ranks that together hold one copy of the sharded states.

        Megatron-LM's distributed optimizer instance, with shard groups of `num_ranks` ranks.
        """
        return _shard_groups(self, num_ranks)[2]

    def of_experts(self, expert: int, expert_tensor: int) -> Mesh:
        """The mesh of the same ranks for experts (Megatron-LM's etp-ep-edp-pp).

        Args:
            expert: ranks along `ep`, with different experts.
            expert_tensor: ranks along `tp`, which shard each expert. The remaining ranks of a stage
                are replicas along `dp`.
        """
        return _of_experts(self, expert, expert_tensor)

    def group_at(self, axis: Axis, places: tuple[int, ...]) -> Group:
        """The group of the ranks at these places along an axis (stages that hold the embedding)."""
        return _group_at(self, axis, places)

    def levels_crossed(self, stage: int, other: int) -> int:
        """Number of network levels that the farthest transfer between two stages crosses.

        0 inside a node, 1 between nodes in a unit of the first wider level, and so on. Each rank
        sends to the rank at the same position in the other stage.
        """
        return _levels_crossed(self, *sorted((stage, other)))

    def _replicas(self, axes: Sequence[Axis]) -> list[int]:
        """Rank numbers of the first rank's replicas along these axes, in all copies of the model.

        The first stage is farthest from the stage with the same parameters, the last one.
        """
        ranks = self._coordinates(axes)
        if self.copies == 1:
            return ranks
        opposite = (self.pp - 1) * self.stride("pp")
        return [*ranks, *(rank + opposite for rank in ranks)]

    def _coordinates(self, axes: Sequence[Axis]) -> list[int]:
        steps = [range(0, getattr(self, a) * self.stride(a), self.stride(a)) for a in axes]
        return [sum(position) for position in itertools.product(*reversed(steps))]


def group_of_ranks(axes: tuple[Axis, ...], ranks: Sequence[int], domains: Domains) -> Group:
    """Return the group of some ranks, by their numbers.

    Args:
        axes: the axes of the group.
        ranks: the numbers.
        domains: of the cluster.
    """
    node, *levels = (domains,) if isinstance(domains, int) else domains
    mesh = Mesh(gpus_per_node=node, gpus_per_level=tuple(levels))
    return _widest(mesh, axes, sorted(ranks), (0,))


@functools.lru_cache(maxsize=4096)
def _of_experts(mesh: Mesh, expert: int, expert_tensor: int) -> Mesh:
    replicas = mesh.size("tp", "cp", "dp") // (expert * expert_tensor)
    return replace(mesh, tp=expert_tensor, cp=1, ep=expert, dp=replicas)


@functools.lru_cache(maxsize=4096)
def _group(mesh: Mesh, axes: tuple[Axis, ...]) -> Group:
    return _widest(mesh, axes, mesh._coordinates(axes), mesh._coordinates(_others(axes)))


@functools.lru_cache(maxsize=4096)
def _split_group(mesh: Mesh, axis: Axis, num_inner: int) -> tuple[Group, Group]:
    part = num_inner * mesh.stride(axis)
    inner = range(0, part, mesh.stride(axis))
    outer = range(0, getattr(mesh, axis) * mesh.stride(axis), part)
    others = mesh._coordinates(_others((axis,)))
    inside, across = (
        _widest(mesh, (axis,), offsets, [start + place for start in others for place in along])
        for offsets, along in ((inner, outer), (outer, inner))
    )
    return inside, across


@functools.lru_cache(maxsize=4096)
def _shard_groups(mesh: Mesh, num_ranks: int) -> tuple[Group, Group, Group]:
    axes: tuple[Axis, ...] = ("cp", "dp")
    data, model = mesh._replicas(axes), mesh._coordinates(_others(axes))
    inner, outer = data[:num_ranks], data[::num_ranks]
    # All stages of an instance already have the ranks of both copies.
    shards = inner[: len(data) // mesh.copies]
    instance = [place + shard for place in model for shard in shards]
    joining = _widest(mesh, axes, outer, instance)
    return (
        _widest(mesh, axes, inner, [place + first for place in model for first in outer]),
        replace(joining, joins_shards=True),
        _widest(mesh, AXES, instance, outer),
    )


@functools.lru_cache(maxsize=4096)
def _group_at(mesh: Mesh, axis: Axis, places: tuple[int, ...]) -> Group:
    offsets = [place * mesh.stride(axis) for place in places]
    return _widest(mesh, (axis,), offsets, mesh._coordinates(_others((axis,))))


@functools.lru_cache(maxsize=65536)
def _levels_crossed(mesh: Mesh, stage: int, other: int) -> int:
    # The ranks of a stage form runs of neighbours, one run for each position along the axes after
    # pp. A run and its peers share a unit if the first rank and the last peer share it.
    run = mesh.stride("pp")
    first, last = stage * run, (other + 1) * run - 1
    if last - first < run:
        return 0
    starts = range(0, mesh.num_ranks, run * mesh.pp) if mesh.order[-1] != "pp" else (0,)
    for level, num_gpus in enumerate((mesh.gpus_per_node, *mesh.gpus_per_level)):
        # Runs with the same offset in a unit have the same layout.
        if all(
            (start + first) // num_gpus == (start + last) // num_gpus for start in starts[:num_gpus]
        ):
            return level
    return 1 + len(mesh.gpus_per_level)


def _others(axes: Sequence[Axis]) -> list[Axis]:
    return [axis for axis in AXES if axis not in axes]


def _widest(
    mesh: Mesh, axes: tuple[Axis, ...], offsets: Sequence[int], starts: Iterable[int]
) -> Group:
    """The group on the most nodes, among groups at `offsets` from each rank of `starts`.

    All groups communicate at the same time and the slowest sets the time. Among groups on equally
    many nodes, that is the group with the fewest ranks on its fullest node. Each wider level is
    treated in the same way, independently.
    """
    first_ranks = [*starts]
    levels = (mesh.gpus_per_node, *mesh.gpus_per_level)
    node, *wider = (_fullest(offsets, first_ranks, num_gpus) for num_gpus in levels)
    return Group(axes, len(offsets), node, tuple(wider))


def _fullest(offsets: Sequence[int], starts: Iterable[int], num_gpus: int) -> int:
    """Ranks in the fullest unit, for the group that spans the most units of `num_gpus` GPUs.

    Groups with the same offset in a unit have the same layout.
    """
    layouts = (
        Counter((start + offset) // num_gpus for offset in offsets)
        for start in {start % num_gpus for start in starts}
    )
    return min((-len(units), max(units.values())) for units in layouts)[1]
