"""Which ranks share a node: the grids of practice, and all grids against a list of every rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.hardware.placement import GroupPlacement, Placement


def grid(t: int, d: int, p: int, per_node: int = 8) -> Placement:
    return Placement(tensor=t, data=d, pipeline=p, gpus_per_node=per_node)


@pytest.mark.parametrize(
    ("placement", "tensor", "data", "model"),
    [
        (grid(8, 1, 8), (8, 8), (1, 1), (64, 8)),
        (grid(8, 8, 35), (8, 8), (8, 1), (280, 8)),
        (grid(16, 1, 1), (16, 8), (1, 1), (16, 8)),
        (grid(4, 2, 1), (4, 4), (2, 2), (4, 4)),
        (grid(4, 4, 1), (4, 4), (4, 2), (4, 4)),
        (grid(2, 2, 2), (2, 2), (2, 2), (4, 4)),
        (grid(1, 16, 1), (1, 1), (16, 8), (1, 1)),
        (grid(4, 1, 4, per_node=4), (4, 4), (1, 1), (16, 4)),
        (grid(1, 1, 1), (1, 1), (1, 1), (1, 1)),
    ],
)
def test_groups_of_common_grids(
    placement: Placement, tensor: tuple[int, int], data: tuple[int, int], model: tuple[int, int]
) -> None:
    """Each pair: ranks of the group, and how many of them are on one node."""
    assert placement.tensor_group() == GroupPlacement(*tensor)
    assert placement.data_group() == GroupPlacement(*data)
    assert placement.model_group() == GroupPlacement(*model)


@pytest.mark.parametrize(
    ("placement", "share"),
    [
        (grid(8, 1, 4), [False, False, False]),
        (grid(4, 1, 4), [True, False, True]),
        (grid(2, 1, 4), [True, True, True]),
        (grid(2, 2, 4), [True, False, True]),
        (grid(4, 2, 3), [False, False]),
    ],
)
def test_stages_that_share_a_node(placement: Placement, share: list[bool]) -> None:
    neighbours = range(placement.pipeline - 1)
    assert [placement.stages_share_node(s, s + 1) for s in neighbours] == share


def test_first_and_last_stage_meet_inside_a_node_only_where_the_pipeline_fits() -> None:
    assert grid(2, 1, 4).embedding_group() == GroupPlacement(2, 2)
    assert grid(4, 1, 4).embedding_group() == GroupPlacement(2, 1)


def test_the_group_that_lies_worst_decides() -> None:
    """Six ranks a group on nodes of eight: the first fits, the second lies on two nodes."""
    assert grid(6, 1, 2).tensor_group() == GroupPlacement(6, 4)
    assert grid(1, 5, 2).data_group() == GroupPlacement(5, 3)


@pytest.mark.parametrize(
    ("group", "num_nodes"),
    [((8, 8), 1), ((16, 8), 2), ((12, 8), 2), ((4, 1), 4), ((1, 1), 1)],
)
def test_nodes_of_a_group(group: tuple[int, int], num_nodes: int) -> None:
    placement = GroupPlacement(*group)
    assert placement.num_nodes == num_nodes
    assert placement.inside_one_node == (num_nodes == 1)


def ranks_of(placement: Placement) -> dict[tuple[int, int, int], int]:
    """Node of each (tensor, data, stage): rank t-index + t · (d-index + d · stage)."""
    return {
        (tensor, data, stage): (tensor + placement.tensor * (data + placement.data * stage))
        // placement.gpus_per_node
        for tensor in range(placement.tensor)
        for data in range(placement.data)
        for stage in range(placement.pipeline)
    }


GRIDS = st.builds(
    grid, st.integers(1, 10), st.integers(1, 10), st.integers(2, 8), st.sampled_from([2, 4, 6, 8])
)


@given(GRIDS)
def test_groups_against_every_rank(placement: Placement) -> None:
    """A group is inside one node exactly if all groups of its kind are."""
    node = ranks_of(placement)
    t, d, p = range(placement.tensor), range(placement.data), range(placement.pipeline)
    tensor = [{node[i, j, k] for i in t} for j in d for k in p]
    data = [{node[i, j, k] for j in d} for i in t for k in p]
    model = [{node[i, j, k] for i in t for k in p} for j in d]
    ends = [{node[i, j, 0], node[i, j, p[-1]]} for i in t for j in d]
    for groups, found in (
        (tensor, placement.tensor_group()),
        (data, placement.data_group()),
        (model, placement.model_group()),
        (ends, placement.embedding_group()),
    ):
        assert found.inside_one_node == all(len(nodes) == 1 for nodes in groups)
        assert found.ranks_per_node <= placement.gpus_per_node
    for stage in p[:-1]:
        same = all(node[i, j, stage] == node[i, j, stage + 1] for i in t for j in d)
        assert placement.stages_share_node(stage, stage + 1) == same
