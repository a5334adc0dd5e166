"""Rank order: how ranks fill nodes, and the effect on transfers and groups."""

from simtrain.hardware.cluster import Cluster
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.parts import structure_of
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from tests.helpers.toys import a100, changed, scenario_with

STAGES_FIRST = "tp-cp-ep-pp-dp"


def scenario(order: str | None = None, pipeline: int = 4) -> Scenario:
    """Return stages of two tensor-parallel ranks, with eight replicas."""
    sizes = {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "seq_length": 512}
    return scenario_with(
        sizes,
        parallelism={"tensor": 2, "pipeline": pipeline, "data": 8},
        batch={"micro": 1, "global": 64},
        **({} if order is None else {"placement": {"order": order}}),
    )


def plan_of(one: Scenario) -> Plan:
    return Plan.of(one, a100().cluster.domains)


def test_stages_first_makes_transfers_independent_of_a_slow_network() -> None:
    """With stages first, all pipeline transfers stay inside nodes."""
    slow = changed(a100(), inter_node__point_to_point__latency=1.0)
    apart, together = (simulate(scenario(order), slow) for order in (None, STAGES_FIRST))
    assert apart.iteration_time_s > 1.0 > together.iteration_time_s
    fast = simulate(scenario(STAGES_FIRST), a100())
    assert together.iteration_time_s == fast.iteration_time_s


def test_transfers_and_groups_of_a_job_follow_oversubscribed_levels() -> None:
    """Each stage is a leaf of two nodes: all transfers cross leaves, and no gradients do."""

    def seconds(times: float) -> float:
        leaf = {"name": "leaf", "nodes": 2, "oversubscription": times}
        written = {"gpus_per_node": 8, "num_nodes": 64, "levels": [leaf]}
        entries = {name: {"value": value, "source": "a test"} for name, value in written.items()}
        cluster = Cluster.model_validate(entries)
        profile = a100().model_copy(update={"cluster": cluster})
        plan = Plan.of(scenario(), cluster.domains)
        assert structure_of(plan).levels_crossed == (2, 2, 2, 2)
        assert plan.mesh.group("dp").ranks_per_level == (8,)
        return simulate(scenario(), profile).iteration_time_s

    plain = simulate(scenario(), a100()).iteration_time_s
    assert seconds(1.0) == plain
    assert plain < seconds(4.0) < seconds(16.0)
