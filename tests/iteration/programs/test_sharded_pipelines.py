"""fully_shard in pipelines: gathers, reductions and unsharded bytes, by hand."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.durations.collectives import wire_bytes
from simtrain.iteration.programs.iteration_builder import tasks_of
from simtrain.iteration.programs.parts import PassPart, actions_skipping_sync, structure_of
from simtrain.scenario import Scenario, check_scenario
from simtrain.schedules import build
from simtrain.studies.simulation import simulate_memory
from simtrain.workload.passes import Pass, record_pass
from simtrain.workload.work import Collective
from tests.helpers.toys import layer_parameters, plan_of, run, small

TITAN = {"stack": "megatron_2022", "fully_shard": True}
STAYS = {"reshard_after_forward": False}


def pipelined(split: dict[str, Any], memory: dict[str, Any] | None = None, **more: Any) -> Scenario:
    """Return parameters that fully_shard divides on each of several stages."""
    sections: dict[str, Any] = {
        "model": {"tied_embeddings": False},
        "memory": {"zero_stage": 3, "reduce_every_microbatch": False} | (memory or {}),
        "overlap": {"data_parallel": True},
        "software": TITAN,
    }
    return small({"tensor": 1, "pipeline": 4, "data": 4} | split, **(sections | more))


def sent(one: Pass, name: str) -> float:
    """Return the bytes that a rank sends in collectives with a name."""
    works = (op.work for op in record_pass(one).ops if op.name == name)
    return math.fsum(wire_bytes(work) for work in works if isinstance(work, Collective))


def sent_of_stages(scenario: Scenario, name: str) -> list[float]:
    """Return the bytes that a rank of each stage sends in an iteration, in
    collectives with a name.
    """
    plan = plan_of(scenario)
    tasks = tasks_of(structure_of(plan))
    passes = {PassPart(variant): one for variant, one in plan.variants.items()}
    bytes_of = [sent(passes[part], name) if part in passes else 0 for part in tasks.parts]  # type: ignore[index]
    found: list[float] = (tasks.num_parts @ bytes_of).tolist()
    return found


@settings(max_examples=12, deadline=None)
@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "interleaved"]),
    stages=st.integers(2, 4),
    turns=st.integers(1, 3),
)
def test_passes_that_gather(schedule: Any, stages: int, turns: int) -> None:
    """The first pass of a chunk gathers. With resharding, each pass after a forward pass does too:
    m + 1 in all.
    """
    chunks, microbatches = (2 if schedule == "interleaved" else 1), turns * stages
    order = build(schedule, stages, chunks, microbatches)
    for rule, expected in (("after_first", 1), ("after_backward", microbatches + 1)):
        gathers = ~actions_skipping_sync(order, rule)  # type: ignore[arg-type]
        for chunk in range(stages * chunks):
            assert gathers[order.virtual_stage == chunk].sum() == expected


def test_the_passes_of_1f1b_that_gather_by_hand() -> None:
    order = build("1f1b", 2, 1, 4)
    gathering = [
        [
            str(order.action(place))
            for place in range(16)
            if not actions_skipping_sync(order, rule)[place]
        ]
        for rule in ("after_first", "after_backward")
    ]
    assert gathering[0] == ["0F0", "1F0"]
    # 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3, then 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3.
    assert gathering[1] == ["0F0", "0F1", "0B0", "0B1", "0B2", "1F0", "1B0", "1B1", "1B2", "1B3"]


@pytest.mark.parametrize("interleave", [1, 2])
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("shards", [2, 4])
def test_bytes_of_an_iteration(interleave: int, stays: bool, shards: int) -> None:
    """2Ψ (s - 1)/s per gather, once or m + 1 times; gΨ (s - 1)/s reduce-scattered; 2gΨ/s (r - 1)/r
    all-reduced.
    """
    memory = {"shard_over": shards} | (STAYS if stays else {})
    scenario = pipelined({"interleave": interleave}, memory)
    times = 1 if stays else scenario.num_microbatches + 1
    held = [one.total for one in plan_of(scenario).stage_parameters]
    s, r = shards, 4 // shards
    expected = {
        "parameter gather": [times * 2 * one * (s - 1) / s for one in held],
        "gradient reduction": [4 * one * (s - 1) / s for one in held],
        "gradient shard all-reduce": [2 * 4 * one / s * (r - 1) / r for one in held],
    }
    for name, stages in expected.items():
        assert sent_of_stages(scenario, name) == pytest.approx(stages, rel=1e-5)


def test_gradients_are_reduced_after_all_passes() -> None:
    """A stage reduces its chunks last, before the gradient norm, so nothing hides
    the reductions.
    """
    result = run(pipelined({"interleave": 2}, STAYS, overlap={"data_parallel": True}))
    spans = [span for span in result.timeline.spans() if span.stream == "stage 1"]
    names = [span.name for span in spans]
    first = names.index("gradient reduction")
    assert names[first : first + 2] == ["gradient reduction"] * 2
    assert not any(name.startswith("1") for name in names[first:])
    assert result.breakdown.data_communication_s > 0
    assert result.breakdown.total_s == pytest.approx(result.iteration_time_s, rel=1e-9)


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("interleave", [1, 2])
def test_parameters_and_gradients_are_whole(interleave: int, stays: bool) -> None:
    """States are 4Ψ/s and 8Ψ/s. Unsharded gradients have 4Ψ and parameters 2Ψ, also if forward
    passes reshard, over all chunks of a stage.

    A forward pass copies layers out of a buffer. With two layers a chunk, the buffer of the next
    layer comes beside; the root's, of the embedding or the head, is free by then. A chunk of one
    layer has the larger buffer of the two.
    """
    scenario = pipelined({"interleave": interleave}, STAYS if stays else None)
    plan, layer = plan_of(scenario), layer_parameters(scenario)
    for stage, memory in zip(plan.stage_parameters, simulate_memory(scenario).stages, strict=True):
        shard = -(-stage.total // 4)
        states = memory.states
        assert (states.parameters_bytes, states.optimizer_bytes) == (4 * shard, 8 * shard)
        assert states.gradients_bytes == 4 * stage.total
        buffer = layer if interleave == 1 else max(layer, stage.root)
        assert memory.buffers_bytes["gathered parameters"] == 2 * (stage.total + buffer)
        assert memory.buffers_bytes["gradient bucket"] == 4 * max(layer, stage.root)


def test_a_single_microbatch_is_reduced_after_its_pass_too() -> None:
    one = pipelined({}, STAYS).replace({"batch.global": 4})
    assert one.num_microbatches == 1
    assert not one.reduces_every_microbatch
    assert sent_of_stages(one, "gradient reduction")[0] > 0
    check_scenario(one)
