"""Collectives over several nodes: hand calculations of each algorithm, and laws of the choice."""

from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.mesh import Group, Mesh
from simtrain.durations.collectives import (
    all_to_all_s,
    collective_is_extrapolated,
    collective_seconds,
    transfer_seconds,
)
from simtrain.hardware.algorithms import (
    ALGORITHMS,
    Collectives,
    NetworkLinks,
    Steps,
    SwitchReduction,
    hierarchical_s,
    ring_over_nodes_s,
    switch_s,
    tree_s,
)
from simtrain.hardware.cluster import Cluster, CollectiveCurve
from simtrain.hardware.profile import HardwareProfile
from simtrain.workload.work import RING_COLLECTIVES, Collective, CollectiveKind
from tests.helpers.toys import a100, changed

US = 1e-6
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, *_ = CollectiveKind
STEPS = Steps(base_s=10 * US, node_s=2 * US, network_s=15 * US, efficiency=0.5)
TWO_NODES = Group(("dp",), 16, 8)
FOUR_NODES, EIGHT_NODES = (Group(("dp",), 8 * nodes, 8) for nodes in (4, 8))


def test_a_ring_crosses_the_network_once_per_node_and_pass() -> None:
    """With 16 ranks on two nodes, one of the 15 steps of a pass is between nodes. A pass sends
    15/16 of the array.
    """
    gather = ring_over_nodes_s(ALL_GATHER, 16e6, TWO_NODES, STEPS, bytes_per_s=200e9)
    assert gather == pytest.approx((10 + 14 * 2 + 1 * 15) * US + 15e6 / 100e9)
    reduce = ring_over_nodes_s(ALL_REDUCE, 16e6, TWO_NODES, STEPS, bytes_per_s=200e9)
    assert reduce == pytest.approx((10 + 28 * 2 + 2 * 15) * US + 30e6 / 100e9)


def test_a_tree_is_as_deep_as_the_logarithm_of_its_nodes() -> None:
    """Eight nodes of eight ranks: 7 steps inside a node and log₂ 8 = 3 levels between nodes, up and
    down. Each node sends the array twice.
    """
    seconds = tree_s(8e6, EIGHT_NODES, STEPS, bytes_per_s=200e9)
    assert seconds == pytest.approx((10 + 2 * (7 * 2 + 3 * 15)) * US + 16e6 / 100e9)


def inside(kind: str) -> float:
    return {"all_reduce": 5.0, "all_gather": 0.001, "reduce_scatter": 0.002}[kind]


@pytest.mark.parametrize(
    ("kind", "inside_s", "passes"),
    [(ALL_REDUCE, 0.003, 2), (ALL_GATHER, 0.001, 1), (REDUCE_SCATTER, 0.002, 1)],
)
def test_a_hierarchy_has_collectives_inside_nodes_and_rings_between_them(
    kind: CollectiveKind, inside_s: float, passes: int
) -> None:
    """Eight rings run at the same time. Each crosses eight nodes, with 1 MB of the 8 MB and an
    eighth of the adapters.
    """
    seconds = hierarchical_s(kind, 8e6, EIGHT_NODES, STEPS, 200e9, inside)
    across_s = (10 + passes * 7 * 15) * US + passes * 7 / 8 * 1e6 / (200e9 / 8 * 0.5)
    assert seconds == pytest.approx(inside_s + across_s)


def test_a_switch_receives_about_half_the_bytes_of_a_ring() -> None:
    """With eight GPUs it receives 9/8 of the array; a ring sends 14/8."""
    assert switch_s(8e6, 8, 20 * US, 300e9) == pytest.approx(20 * US + 9e6 / 300e9)


def test_switches_and_trees_work_at_the_same_time() -> None:
    """The slower of node and network limits the time. A tree of four nodes has two steps up and two
    down.
    """
    entry = SwitchReduction(latency={"value": "20 us", "source": "a test"})
    for inside_s, slower_s in ((1e-6, 16e6 / 200e9), (1.0, 1.0)):
        node = Mock(num_ranks=8, most_ranks_measured=8, all_reduce_latency_s=0.0)
        node.measured_s.return_value = inside_s
        links = NetworkLinks("all_reduce", 8e6, FOUR_NODES, 15 * US, 200e9, 0.0, node)
        seconds = ALGORITHMS["switch"].across_nodes_s(entry, links)
        assert seconds == pytest.approx((20 + 4 * 15) * US + slower_s)


def test_ranks_of_an_all_to_all_use_their_own_share_of_the_adapters() -> None:
    """64 ranks, 8 per node and 32 per leaf: 56/64 of the array leave the node at 25 GB/s, and 32/64
    leave the leaf at 10 GB/s. The slowest limits the time.
    """
    seconds = all_to_all_s(64e6, 64, 20 * US, [(8, 25e9), (32, 10e9)], inside_s=1e-6)
    assert seconds == pytest.approx(20 * US + max(56e6 / 25e9, 32e6 / 10e9))
    assert all_to_all_s(64e6, 64, 20 * US, [(8, 25e9)], inside_s=1.0) == 1.0


# --------------------------------------------------------------------- on a profile's machine


def entry(value: Any) -> dict[str, Any]:
    return {"value": value, "source": "a test"}


def protocol(base: str = "8 us", node: str = "3 us", efficiency: float = 1.0) -> dict[str, Any]:
    return {"name": "Simple", "base_latency": base, "node_step": node, "efficiency": efficiency}


ALL = {
    "ring": entry([protocol(), protocol("14 us", "2 us", 0.9)]),
    "tree": entry([protocol("14 us", "1 us", 0.8)]),
    "hierarchical": entry([protocol()]),
    "switch": {"latency": entry("23 us"), "efficiency": entry(0.7)},
}
WORDS = (*ALGORITHMS,)


def machine(
    collectives: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
) -> HardwareProfile:
    """Return the A100's profile with a section `collectives` and other entries of `cluster`."""
    profile = a100()
    written = {"gpus_per_node": entry(8), "num_nodes": entry(560), **(cluster or {})}
    table = None if collectives is None else Collectives.model_validate(collectives)
    update = {"collectives": table, "cluster": Cluster.model_validate(written)}
    return profile.model_copy(update=update)


def only(word: str) -> HardwareProfile:
    return machine(ALL | {"algorithm": entry(word)})


KINDS = st.sampled_from(RING_COLLECTIVES)
BYTES = st.integers(1, 2 * 10**10)
GROUPS = st.sampled_from(
    [Group(("tp",), n, per_node) for n in (2, 4, 6, 8, 16, 64, 4096) for per_node in (1, 2, 4, 8)]
).map(lambda group: Group(group.axes, group.num_ranks, min(group.num_ranks, group.ranks_per_node)))


@given(KINDS, BYTES, GROUPS)
def test_the_fastest_algorithm_is_chosen(kind: CollectiveKind, size: int, group: Group) -> None:
    op = Collective(kind, size, group)
    each = [collective_seconds(op, only(word)) for word in WORDS]
    assert collective_seconds(op, machine(ALL)) == min(each)


@given(KINDS, BYTES, GROUPS, st.sampled_from([*WORDS, "auto"]), st.floats(1.0, 10.0))
def test_more_bandwidth_never_slows_any_algorithm(
    kind: CollectiveKind, size: int, group: Group, word: str, times: float
) -> None:
    op, profile = Collective(kind, size, group), only(word)
    before = collective_seconds(op, profile)
    for faster in (
        {"intra_node__bandwidth": 300e9 * times},
        {"inter_node__adapter_bandwidth": 25e9 * times},
    ):
        assert collective_seconds(op, changed(profile, **faster)) <= before


@given(KINDS, BYTES, st.sampled_from([2, 3, 4, 8]), st.sampled_from([*WORDS, "auto"]))
def test_collectives_inside_a_node_follow_the_measured_curve(
    kind: CollectiveKind, size: int, num_ranks: int, word: str
) -> None:
    """The algorithms differ only between nodes."""
    op = Collective(kind, size, Group(("tp",), num_ranks, num_ranks))
    assert collective_seconds(op, only(word)) == collective_seconds(op, a100())


@pytest.mark.parametrize("word", ["hierarchical", "switch"])
def test_nodes_with_one_rank_each_have_only_rings(word: str) -> None:
    for group, is_ring in ((Group(("dp",), 16, 1), True), (TWO_NODES, False)):
        op = Collective(ALL_REDUCE, 10**9, group)
        times_s = {collective_seconds(op, only(each)) for each in (word, "ring")}
        assert (len(times_s) == 1) == is_ring


# ------------------------------------------------------------------- NVLink domains and levels

NVL72 = {"gpus_per_node": entry(4), "gpus_per_nvlink_domain": entry(72), "num_nodes": entry(36)}


def test_an_nvlink_domain_counts_as_one_node() -> None:
    """72 GPUs on 18 nodes need no adapters; 144 GPUs are on two domains."""
    profile = machine(ALL, NVL72)
    assert profile.cluster.domains == 72
    mesh = Mesh(dp=144, gpus_per_node=72)
    assert mesh.group("dp") == Group(("dp",), 144, 72)
    everyone = Collective(ALL_REDUCE, 10**9, Group(("dp",), 72, 72))
    reached = 300e9 * 1.056 * 0.7
    expected = 23 * US + 73 / 72 * 1e9 / reached
    assert collective_seconds(everyone, machine(ALL | {"algorithm": entry("switch")}, NVL72)) == (
        pytest.approx(expected)
    )
    assert collective_seconds(everyone, profile) <= expected
    # Four GPUs of a node share eight adapters, two each. All adapters work at the same time.
    across = collective_seconds(Collective(ALL_GATHER, 10**9, Group(("dp",), 144, 72)), profile)
    assert across >= 143 / 144 * 1e9 / (72 * 2 * 25e9 * 0.96)


def levels(*pairs: tuple[int, float]) -> dict[str, Any]:
    return {
        "levels": entry(
            [
                {"name": f"level {nodes}", "nodes": nodes, "oversubscription": times}
                for nodes, times in pairs
            ]
        )
    }


def on_levels(*shared: int, num_ranks: int = 64) -> Group:
    per_node, *wider = shared
    return Group(("dp",), num_ranks, per_node, tuple(wider))


@pytest.mark.parametrize(
    ("group", "times", "slower"),
    [
        (on_levels(1, 1), 2.0, 2.0),  # one rank per leaf: other groups share the uplinks
        (on_levels(1, 4), 2.0, 1.0),  # four per leaf, one of which sends: half the uplinks suffice
        (on_levels(1, 4), 8.0, 2.0),
        (on_levels(8, 16), 4.0, 2.0),  # two nodes per leaf, one of which sends
        (on_levels(8, 64), 4.0, 1.0),  # all ranks on one leaf
    ],
)
def test_a_ring_has_its_share_of_oversubscribed_uplinks(
    group: Group, times: float, slower: float
) -> None:
    op = Collective(ALL_GATHER, 10**9, group)
    free = changed(machine(None, levels((4, times))), inter_node__step_latency=0.0)
    even = changed(machine(None, levels((4, 1.0))), inter_node__step_latency=0.0)
    ratio = collective_seconds(op, free) / collective_seconds(op, even)
    assert ratio == pytest.approx(slower)


@given(
    KINDS | st.just(ALL_TO_ALL),
    BYTES,
    st.sampled_from([*WORDS, "auto", None]),
    st.sampled_from([on_levels(8, 32, 64), on_levels(1, 4, 16), on_levels(2, 2, 4)]),
    st.tuples(st.floats(1, 8), st.floats(1, 8)),
    st.floats(1, 4),
)
def test_more_oversubscription_is_never_faster(
    kind: CollectiveKind,
    size: int,
    word: str | None,
    group: Group,
    times: tuple[float, float],
    more: float,
) -> None:
    table = None if word is None else ALL | {"algorithm": entry(word)}
    leaf, spine = times
    op = Collective(kind, size, group)
    even, before, leafs, spines = (
        collective_seconds(op, machine(table, levels(*zip((4, 16), both, strict=True))))
        for both in ((1.0, 1.0), (leaf, spine), (leaf * more, spine), (leaf, spine * more))
    )
    assert even <= before <= min(leafs, spines)
    flat = Group(group.axes, group.num_ranks, group.ranks_per_node)
    assert even == collective_seconds(Collective(kind, size, flat), machine(table))


def test_a_transfer_has_its_share_of_the_narrowest_uplinks_that_it_takes() -> None:
    profile = machine(None, levels((4, 2.0), (16, 3.0)))
    latency_s = 24 * US
    rates = [
        10**9 / (transfer_seconds(10**9, crossed, num_sharing=1, profile=profile) - latency_s)
        for crossed in (1, 2, 3)
    ]
    assert rates == pytest.approx([25e9 * 0.743 / times for times in (1, 2, 3)])
    sent = Collective(CollectiveKind.SEND, 10**9, on_levels(1, 4, 16))
    assert collective_seconds(sent, profile) == (
        transfer_seconds(10**9, 3, num_sharing=1, profile=profile)
    )


# ---------------------------------------------------------------------------------- all-to-alls


def with_all_to_all(profile: HardwareProfile) -> HardwareProfile:
    curve = {
        "num_ranks": 8,
        "latency": "10 us",
        "array_bytes": ["1 MB", "1 GB"],
        "efficiency": [0.5, 0.5],
    }
    entry_type = type(profile.links.reduce_scatter)
    measured = entry_type(value=[CollectiveCurve.model_validate(curve)], source="a test")
    links = profile.links.model_copy(update={"all_to_all": measured})
    return profile.model_copy(update={"intra_node": links})


def test_a_measured_all_to_all_uses_its_own_curve() -> None:
    """Inside a node the curve gives the time. Across two nodes, half of the array crosses each
    rank's own adapter.
    """
    profile = with_all_to_all(a100())
    within = Collective(ALL_TO_ALL, 8 * 10**7, Group(("ep",), 8, 8))
    assert collective_seconds(within, profile) == pytest.approx(
        10 * US + 7e7 / (300e9 * 1.056 * 0.5)
    )
    assert not collective_is_extrapolated(within, profile)
    across = Collective(ALL_TO_ALL, 8 * 10**7, TWO_NODES)
    assert collective_seconds(across, profile) == pytest.approx(24 * US + 4e7 / (25e9 * 0.96))
    assert collective_is_extrapolated(across, profile)


@given(st.integers(2, 64), st.integers(1, 10**9), st.floats(1e9, 1e13))
def test_an_all_to_all_of_more_nodes_leaves_less_inside(
    nodes: int, array_bytes: int, bytes_per_s: float
) -> None:
    """With adapters that cost nothing, it takes as long as that of one node's part of the array."""
    profile = changed(
        with_all_to_all(a100()),
        inter_node__adapter_bandwidth=1e30,
        inter_node__point_to_point__latency=0.0,
        intra_node__bandwidth=bytes_per_s,
    )
    across = Collective(ALL_TO_ALL, nodes * array_bytes, Group(("ep",), 8 * nodes, 8))
    inside = Collective(ALL_TO_ALL, array_bytes, Group(("ep",), 8, 8))
    assert collective_seconds(across, profile) == collective_seconds(inside, profile)
