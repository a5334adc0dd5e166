"""CUDA graphs of parts of a layer, and those of a framework's recipes by machine and model."""

import pytest

from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.simulation import checked_profile, simulate
from simtrain.workload.issue import LaunchKind
from simtrain.workload.passes import record_pass

BRIDGE = "software=megatron_bridge@26.04"


def of_recipe(name: str, cluster: str, *assignments: str) -> tuple[bool, tuple[str, ...]]:
    facts = load_scenario(name, [BRIDGE, f"cluster={cluster}", *assignments]).facts
    return facts.cuda_graphs, tuple(facts.cuda_graph_modules)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("software.cuda_graphs=false", (False, ())),
        ("software.cuda_graph_modules=[attn]", (False, ("attn",))),
        ("software.cuda_graph_modules=[]", (False, ())),
    ],
)
def test_a_scenario_overrides_the_recipe(setting: str, expected: tuple[bool, object]) -> None:
    assert of_recipe("llama3_8b", "gb300", setting) == expected


def launches(scenario: Scenario, kind: str) -> list[LaunchKind]:
    """Return how the host launches the ops of a layer's pass."""
    cluster = checked_profile(scenario).cluster
    plan = Plan.of(scenario, cluster.domains_of(scenario.num_gpus))
    (record,) = (record_pass(one) for one in plan.passes.values() if one.kind == kind)
    segments = [part for part in record.segments if len(part.ops) > 8]
    return list(segments[len(segments) // 2].launches)


@pytest.mark.parametrize("kind", ["F", "B"])
def test_a_part_of_a_layer_is_one_call(kind: str) -> None:
    none = launches(load_scenario("llama3_8b"), kind)
    attn, whole = (
        launches(load_scenario("llama3_8b", [f"software.cuda_graph_modules={modules}"]), kind)
        for modules in ("[attn]", "[attn,mlp]")
    )
    assert LaunchKind.REPLAYED not in none
    assert 1 < attn.count(LaunchKind.CALL) < none.count(LaunchKind.CALL)
    assert whole == [LaunchKind.CALL] + [LaunchKind.REPLAYED] * (len(none) - 1)


@pytest.mark.parametrize("name", ["llama3_8b", "qwen3_30b_a3b"])
def test_more_graphs_are_never_slower(name: str) -> None:
    tiny = ["model.num_layers=4", "model.seq_length=512", "parallelism.expert=1"]
    tiny = [*tiny, "batch.micro=1"] if name == "qwen3_30b_a3b" else tiny[:2]
    variants = ["[]", "[attn]", "[attn,mlp]"]
    if name == "qwen3_30b_a3b":
        variants = ["[]", "[moe_router]", "[attn,moe_router,moe_preprocess]"]
    times_s = [
        simulate(load_scenario(name, [*tiny, f"software.cuda_graph_modules={modules}"]))
        for modules in variants
    ]
    seconds = [result.iteration_time_s for result in times_s]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] < seconds[0]
