"""Where ranks are, which replicas wait for each other, and how durations follow their causes."""

from collections import Counter

import numpy as np
import pytest

import simtrain
from simtrain.engine.replicas import ReplicaProgram, run_replicas
from simtrain.hardware.load import load_profile
from simtrain.iteration.programs.parts import PassPart, SynchronizationPart, TransferPart
from simtrain.iteration.variation.draw import RankLayout, RankPosition
from simtrain.iteration.variation.drawn import DrawnIteration, effective_durations, sources_of
from simtrain.iteration.variation.response import CAUSES, Response, Responses
from simtrain.scenario import Scenario
from simtrain.workload.work import Collective, HostWork

EXPERTS = {"parallelism.data": 16, "batch.global": 256}


def layout_of(scenario: Scenario) -> RankLayout:
    return RankLayout.of(simtrain.run(scenario).plan)


def test_every_stage_of_a_replica_has_as_many_ranks() -> None:
    scenario = simtrain.load_scenario("llama3_405b")
    layout = layout_of(scenario)
    places = [layout.place(rank) for rank in range(scenario.num_gpus)]
    assert set(Counter(places).values()) == {layout.members}
    # Megatron-LM's order: tensor-parallel ranks are neighbours, then replicas, then stages.
    assert places[7] == RankPosition(stage=0, replica=0)
    assert places[8] == RankPosition(stage=0, replica=1)
    assert places[32] == RankPosition(stage=1, replica=0)
    assert layout.ranks_on_node(13) == range(8, 16)


def joined(scenario: Scenario) -> dict[str, set[int]]:
    """Return how many replicas run tasks of each kind together."""
    iteration = simtrain.run(scenario).iteration
    entries = load_profile("h100_sxm").variation
    assert entries is not None
    drawn = DrawnIteration.of(iteration, sources_of(iteration, entries), 0)
    graph = iteration.tasks.graph
    sizes: dict[str, set[int]] = {}
    for task, size in enumerate(drawn.group_sizes.tolist()):
        sizes.setdefault(graph.kinds[graph.kind_of[task]], set()).add(size)
    return sizes


def test_replicas_meet_where_collectives_join_them() -> None:
    scenario = simtrain.load_scenario("table5_22b_present")
    sizes = joined(scenario.replace({"parallelism.data": 4, "batch.global": 16}))
    assert sizes["forward"] == sizes["backward"] == {1}
    assert sizes["data"] == {4}


def test_sharded_parameters_join_replicas_in_every_pass() -> None:
    scenario = simtrain.load_scenario("llama3_8b").replace(
        {"parallelism": {"data": 8}, "batch.global": 8, "memory.zero_stage": 3}
    )
    assert joined(scenario)["forward"] == {8}


def test_experts_join_the_replicas_that_exchange_tokens() -> None:
    scenario = simtrain.load_scenario("mixtral_8x7b")
    layout = layout_of(scenario)
    split = scenario.parallelism
    assert split.expert * split.ranks_of_expert > split.tensor * split.context
    exchanging = split.expert * split.ranks_of_expert // (split.tensor * split.context)
    assert layout.expert_replicas == exchanging
    assert max(joined(scenario)["forward"]) == exchanging


def test_only_replicas_that_wait_for_a_slow_one_are_simulated() -> None:
    mesh = layout_of(simtrain.load_scenario("llama3_405b")).mesh
    layout = RankLayout(mesh, expert_replicas=2, shard_replicas=4)
    assert layout.replicas_to_simulate([3], all_differ=False).tolist() == [0, 1, 2, 3]
    assert layout.replicas_to_simulate([], all_differ=False).tolist() == [0, 1]
    dense = RankLayout(mesh, expert_replicas=1, shard_replicas=4)
    assert dense.replicas_to_simulate([2], all_differ=False).tolist() == [0, 2]
    assert dense.replicas_to_simulate([2], all_differ=True).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["llama3_405b", "mixtral_8x7b", "deepseek_v3"])
def test_effective_durations_give_the_same_times_without_links(name: str) -> None:
    iteration = simtrain.run(simtrain.load_scenario(name)).iteration
    timeline, graph = iteration.timeline, iteration.tasks.graph
    seconds = effective_durations(timeline)[:, None, None]
    ones = np.ones(graph.num_tasks, np.intp)
    start_s, end_s = run_replicas(ReplicaProgram(graph, ones, seconds))
    assert np.array_equal(start_s[:, 0, 0], timeline.start_s)
    assert np.array_equal(end_s[:, 0, 0], timeline.end_s)


@pytest.mark.parametrize("name", ["table5_22b_present", "llama3_8b", "mixtral_8x7b"])
def test_durations_are_1_at_1_grow_and_are_near_the_engine_between_its_points(name: str) -> None:
    """The points are wide apart here; draws have more of them."""
    seconds = simtrain.run(simtrain.load_scenario(name)).seconds
    few = Responses(seconds, dict.fromkeys(CAUSES, (0.5, 1.0, 1.5, 2.0)))
    more = Responses(seconds, dict.fromkeys(CAUSES, (0.5, 0.8, 1.0, 1.2, 1.5, 1.7, 2.0)))
    for part in map(PassPart, seconds.passes):
        for cause in CAUSES:
            response = few.of(part, cause)
            assert response.ratios[1] == 1.0
            works = [op.work for op in few.ops_of(part)]
            kernels = [work for work in works if not isinstance(work, Collective | HostWork)]
            sent = [work for work in works if isinstance(work, Collective)]
            network = [work for work in sent if not work.group.inside_one_node]
            takes = {"kernels": kernels, "collectives": sent, "network": network}
            assert takes[cause] or response.is_constant
            assert list(response.ratios) == sorted(response.ratios)
            exact = more.of(part, cause)
            interpolated = response.at(np.array(exact.factors))
            assert interpolated == pytest.approx(np.array(exact.ratios), rel=0.02)
            # A convex function is at most its chords.
            assert (interpolated >= np.array(exact.ratios) - 1e-6).all()


def test_a_transfer_follows_collectives_and_the_network_that_it_crosses() -> None:
    factors = (0.5, 1.0, 2.0)
    responses = Responses(
        simtrain.run(simtrain.load_scenario("table5_22b_present")).seconds,
        dict.fromkeys(CAUSES, factors),
    )
    for part, follows in (
        (TransferPart(1, 0), {"collectives"}),
        (TransferPart(1, 1), {"collectives", "network"}),
        (SynchronizationPart(1), set()),
    ):
        ratios = {cause: responses.of(part, cause).ratios for cause in CAUSES}
        constant = (1.0,) * 3
        assert ratios == {cause: factors if cause in follows else constant for cause in CAUSES}


def test_a_response_continues_beyond_its_last_point() -> None:
    assert Response((1.0, 2.0), (1.0, 1.5)).at(np.array([1.0, 2.0, 4.0])).tolist() == [1, 1.5, 2.5]
