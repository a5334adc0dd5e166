"""Ranks that share a node: common meshes, and any mesh compared with a list of all ranks."""

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.mesh import AXES, Axis, Mesh

# ------------------------------------------------------------- compared with a list of all ranks

Position = dict[Axis, int]


def positions(mesh: Mesh) -> Iterator[Position]:
    """Return the position of each rank on each axis. Positions on the first axis change fastest."""
    slowest_first = mesh.order[::-1]
    for place in itertools.product(*(range(mesh.size(axis)) for axis in slowest_first)):
        yield dict(zip(slowest_first, place, strict=True))


def units_of(mesh: Mesh, num_gpus: int) -> list[tuple[Position, int]]:
    """Return each rank's positions and the number of its unit of `num_gpus` GPUs."""
    return [(at, rank // num_gpus) for rank, at in enumerate(positions(mesh))]


def groups_of(mesh: Mesh, axes: tuple[Axis, ...], num_gpus: int) -> list[list[int]]:
    """Return the units of the ranks of each group, whose ranks differ only on these axes."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for at, node in units_of(mesh, num_gpus):
        groups.setdefault(tuple(at[axis] for axis in AXES if axis not in axes), []).append(node)
    return list(groups.values())


def slowest(groups: list[list[int]]) -> tuple[int, int]:
    """Return the ranks per group, and how many share the fullest node of the slowest group.

    The slowest group is the one on the most nodes; of several, the one with the fewest ranks on its
    fullest node.
    """
    counts = [Counter(nodes) for nodes in groups]
    most = max(map(len, counts))
    return len(groups[0]), min(max(count.values()) for count in counts if len(count) == most)


SIZES = st.integers(1, 4)
ORDERS = st.permutations(AXES).map(tuple)
MESHES = st.one_of(
    st.builds(
        Mesh,
        tp=st.integers(1, 10),
        dp=st.integers(1, 10),
        pp=st.integers(2, 8),
        gpus_per_node=st.sampled_from([2, 4, 6, 8]),
    ),
    st.builds(
        Mesh,
        tp=SIZES,
        cp=SIZES,
        ep=SIZES,
        dp=SIZES,
        pp=SIZES,
        gpus_per_node=st.sampled_from([1, 2, 3, 4, 6, 8]),
        order=ORDERS,
    ),
    st.builds(
        Mesh,
        tp=SIZES,
        cp=SIZES,
        dp=st.integers(1, 6),
        pp=SIZES,
        gpus_per_node=st.just(4),
        gpus_per_level=st.sampled_from([(8,), (16, 64), (12, 24, 48)]),
        order=ORDERS,
    ),
)
SOME_AXES = st.lists(st.sampled_from(AXES), min_size=1, max_size=5, unique=True).map(
    lambda some: tuple(sorted(some, key=AXES.index))
)


@given(MESHES)
def test_ranks_are_numbered_along_the_axes(mesh: Mesh) -> None:
    ranks = [sum(at[axis] * mesh.stride(axis) for axis in AXES) for at in positions(mesh)]
    assert ranks == list(range(mesh.num_ranks))


@given(MESHES, SOME_AXES)
def test_a_group_is_the_one_on_the_most_nodes(mesh: Mesh, axes: tuple[Axis, ...]) -> None:
    """It is inside one node exactly if all groups of its axes are."""
    groups, found = groups_of(mesh, axes, mesh.gpus_per_node), mesh.group(*axes)
    assert found.inside_one_node == all(len({*nodes}) == 1 for nodes in groups)
    assert found.axes == axes
    assert found.num_ranks == mesh.size(*axes)
    assert (found.num_ranks, found.ranks_per_node) == slowest(groups)
    assert found.ranks_per_node <= mesh.gpus_per_node


@pytest.mark.slow
@given(MESHES, SOME_AXES)
def test_a_group_says_how_many_of_its_ranks_share_each_level(
    mesh: Mesh, axes: tuple[Axis, ...]
) -> None:
    """At each level, of the groups on the most units, the one with the fewest ranks per unit
    decides.
    """
    found = mesh.group(*axes)
    levels = [slowest(groups_of(mesh, axes, num_gpus))[1] for num_gpus in mesh.gpus_per_level]
    assert found.ranks_per_level == tuple(levels)
    shared = (found.ranks_per_node, *found.ranks_per_level)
    assert all(less <= more for less, more in itertools.pairwise(shared))


@given(MESHES, st.sampled_from(AXES))
def test_the_group_at_some_places_has_the_ranks_at_these_places(mesh: Mesh, axis: Axis) -> None:
    size, pairs = mesh.size(axis), dict[tuple[int, ...], list[int]]()
    places = tuple(sorted({0, size // 2, size - 1}))
    for at, node in units_of(mesh, mesh.gpus_per_node):
        if at[axis] in places:
            rest = tuple(at[other] for other in AXES if other != axis)
            pairs.setdefault(rest, []).append(node)
    found = mesh.group_at(axis, places)
    assert found.inside_one_node == all(len({*nodes}) == 1 for nodes in pairs.values())
    if mesh.size(axis) > 1:
        assert (found.num_ranks, found.ranks_per_node) == slowest([*pairs.values()])


@given(MESHES)
def test_stages_share_a_node_exactly_if_all_their_ranks_do(mesh: Mesh) -> None:
    """Each rank sends to the rank at its position, so all transfers stay inside a node.

    The same holds for each wider level.
    """
    levels = (mesh.gpus_per_node, *mesh.gpus_per_level)
    rank = {tuple(at[axis] for axis in AXES): number for number, at in enumerate(positions(mesh))}
    for stage, other in itertools.product(range(mesh.pp), repeat=2):
        places = itertools.product(range(mesh.tp), range(mesh.cp), range(mesh.ep), range(mesh.dp))
        pairs = [(rank[*at, stage], rank[*at, other]) for at in places]
        crossed = sum(any(a // size != b // size for a, b in pairs) for size in levels)
        assert mesh.levels_crossed(stage, other) == crossed


@given(
    st.builds(Mesh, tp=SIZES, cp=SIZES, dp=SIZES, pp=SIZES, order=st.permutations(AXES).map(tuple))
)
def test_experts_have_the_same_ranks(mesh: Mesh) -> None:
    """Those of a stage that share no expert are its replicas."""
    assert Mesh().num_ranks == 1
    ranks = mesh.size("tp", "cp", "dp")
    for expert, tensor in itertools.product(range(1, ranks + 1), repeat=2):
        if ranks % (expert * tensor) == 0:
            experts = mesh.of_experts(expert, tensor)
            assert (experts.tp, experts.ep, experts.pp) == (tensor, expert, mesh.pp)
            assert experts.group(*AXES).num_ranks == mesh.num_ranks
