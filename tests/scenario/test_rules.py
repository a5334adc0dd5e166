"""Rules of scenarios, compared with a second implementation, and the fixes that they suggest."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.scenario import RULES, Scenario, check_scenario, load_scenario
from simtrain.scenario.remedies import broken_codes
from simtrain.scenario.rules import size_rule
from simtrain.schedules import OrderOptions, build, most_outstanding
from tests.helpers.scenario_texts import MINIMAL, fixes_of, scenario_of
from tests.helpers.uneven_pipelines import (
    layers_are_placed_by_hand,
    layers_by_hand,
    uneven_pipelines,
)

BOOL = st.booleans()


def of(*values: Any) -> st.SearchStrategy[Any]:
    """Draw one of these values, which make legal and illegal combinations common."""
    return st.sampled_from(values)


def with_some(
    required: Mapping[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw all required keys and any of the optional ones, because rules also read defaults."""
    return st.fixed_dictionaries(dict(required), optional=optional)


ANY_SCENARIO = with_some(
    {
        "model": with_some(
            {
                "num_layers": of(24, 48, 96, 48, 7),
                "hidden_size": of(96, 48, 480, 384, 96, 100),
                "num_attention_heads": of(24, 48, 24, 48, 5),
                "seq_length": of(48, 96, 2048, 7),
            },
            ffn_hidden_size=of(96, 192, 50),
            vocab_size=of(4800, 9600, 50257),
            num_query_groups=of(24, 8, 8, 7, 1),
            kv_channels=of(8, 64, 320, 5),
        ),
        "batch": with_some({"micro": of(1, 2, 1, 3), "global": of(48, 96, 192, 50)}),
        "parallelism": with_some(
            {
                "tensor": of(1, 2, 4, 8, 3, 7),
                "pipeline": of(1, 2, 3, 4, 8, 5),
                "interleave": of(1, 2, 3),
            },
            data=of(1, 2, 4, 5),
            sequence_parallel=BOOL,
            scatter_gather=BOOL,
            first_stage_layers=of(None, None, None, 3, 6, 8, 12, 100),
            last_stage_layers=of(None, None, None, 6, 9, 12, 15),
        ),
    },
    schedule=of("gpipe", "1f1b", "interleaved", "interleaved"),
    precision=with_some({}, compute=of("bf16", "fp16"), gradients=of("fp32", "bf16", "fp16")),
    overlap=with_some(
        {},
        pipeline=BOOL,
        data_parallel=of(True, True, False),
        parameter_gather=of(False, False, False, True),
        gradient_buckets=of("layer", "layer", "megatron"),
        align_gradient_reduction=of(False, False, True),
        align_parameter_gather=of(False, False, False, True),
    ),
    recompute=with_some(
        {"strategy": of("none", "selective", "full", "full", "auto")},
        method=of("uniform", "block"),
        num_layers=of(1, 1, 2, 6, 50),
        keep_microbatches=of(0, 0, 1, 3, 9, 500, "auto"),
    ),
    memory=with_some({}, zero_stage=of(0, 0, 1, 2, 3)),
    attention_backend=of("unfused", "fused", "unfused"),
)


EITHER = ANY_SCENARIO | uneven_pipelines()


def buckets_are_legal_by_hand(scenario: Scenario) -> bool:
    overlap, stage = scenario.overlap, scenario.memory.zero_stage
    has_buckets = overlap.data_parallel and stage < 2
    gathers = overlap.parameter_gather
    return (
        (not gathers or (has_buckets and stage == 1))
        and (overlap.gradient_buckets == "layer" or has_buckets)
        and not (
            overlap.align_gradient_reduction
            and not (has_buckets and scenario.parallelism.pipeline > 1)
        )
        and not (
            overlap.align_parameter_gather and not (gathers and scenario.schedule == "interleaved")
        )
    )


def is_legal_by_hand(scenario: Scenario) -> bool:
    """Return whether Megatron-LM accepts a scenario, from the quotients that must be integers."""
    model, split, batch = scenario.model, scenario.parallelism, scenario.batch
    interleaved = scenario.schedule == "interleaved"
    has_channels = "kv_channels" in model.model_fields_set
    cuts = split.scatter_gather and split.pipeline > 1
    whole = [
        (model.num_query_groups, split.tensor),
        (model.num_attention_heads, model.num_query_groups),
        (model.hidden_size, 1 if has_channels else model.num_attention_heads),
        (model.seq_length * batch.micro * model.hidden_size, split.tensor if cuts else 1),
        (model.ffn_hidden_size, split.tensor),
        (model.vocab_size, split.tensor),
        (batch.global_, batch.micro * split.data),
        (model.seq_length, split.tensor if split.sequence_parallel else 1),
    ]
    fewest_stages = 1
    if interleaved:
        fewest_stages = 2 if scenario.overlap.pipeline else 3
    channels = model.kv_channels
    highest_zero_stage = 3 if split.pipeline == 1 else 1
    return (
        all(number % parts == 0 for number, parts in whole)
        and interleaved == (split.interleave > 1)
        and groups_are_legal_by_hand(scenario)
        and split.pipeline >= fewest_stages
        and layers_are_placed_by_hand(scenario)
        and not (split.sequence_parallel and (split.tensor == 1 or split.scatter_gather))
        and not (scenario.overlap.pipeline and not interleaved)
        and scenario.gradient_type in ("fp32", scenario.precision.compute)
        and recompute_is_legal_by_hand(scenario)
        and buckets_are_legal_by_hand(scenario)
        and (scenario.attention_backend == "unfused" or channels in range(8, 257, 8))
        and scenario.memory.zero_stage <= (0 if split.data == 1 else highest_zero_stage)
    )


def groups_are_legal_by_hand(scenario: Scenario) -> bool:
    """Return whether each group of the interleaved schedule has a microbatch per stage."""
    split, microbatches = scenario.parallelism, scenario.num_microbatches
    if scenario.schedule != "interleaved":
        return split.microbatch_group_size is None
    size = split.microbatch_group_size or split.pipeline
    last = microbatches % size or size
    return split.pipeline <= min(size, last) and size <= microbatches


def recompute_is_legal_by_hand(scenario: Scenario) -> bool:
    """Return whether recompute is legal. All else must be legal, to build the schedule."""
    policy, split = scenario.recompute, scenario.parallelism
    kept = policy.keep_microbatches
    if kept and (policy.strategy in ("none", "auto") or split.pipeline == 1):
        return False
    if kept and kept != "auto":
        sizes = split.pipeline, split.interleave, scenario.num_microbatches
        options = OrderOptions(split.microbatch_group_size)
        if kept > most_outstanding(build(scenario.schedule, *sizes, options))[0]:
            return False
    if policy.strategy != "full":
        return (policy.method, policy.num_layers) == ("uniform", 1)
    return policy.num_layers <= max(layers_by_hand(scenario)) // split.interleave


@settings(max_examples=200)
@given(EITHER)
def test_nothing_illegal_runs_and_nothing_legal_is_refused(data: Mapping[str, Any]) -> None:
    scenario = Scenario.model_validate(data)
    assert (broken_codes(scenario, RULES) == set()) == is_legal_by_hand(scenario)


@pytest.mark.slow
@settings(max_examples=60)
@given(EITHER)
def test_a_legal_scenario_has_whole_quantities(data: Mapping[str, Any]) -> None:
    scenario = Scenario.model_validate(data)
    try:
        check_scenario(scenario)
    except InputError as error:
        assert {problem.code for problem in error.problems} == broken_codes(scenario, RULES)
        return
    split, batch = scenario.parallelism, scenario.batch
    assert scenario.num_microbatches * batch.micro * split.data == batch.global_
    layers = scenario.chunks_layers
    assert len(layers) == split.pipeline * split.interleave
    assert sum(layers) == scenario.model.num_layers
    assert tuple(sorted(set(layers))) == scenario.chunk_sizes
    assert [scenario.layers_of_stage(stage) for stage in range(split.pipeline)] == [
        sum(layers[stage :: split.pipeline]) for stage in range(split.pipeline)
    ]


def test_more_passes_than_can_be_laid_out_are_refused() -> None:
    """The limit is a million forward passes: stages times chunks times microbatches."""
    text = MINIMAL + "parallelism: {pipeline: 4, interleave: 3}\n"
    group = 4 * 4  # one microbatch of four sequences per stage
    most = 1_000_000 // 12 // 4 * group
    scenario_of(text.replace("global: 64", f"global: {most}"))
    first, *_ = fixes_of(text.replace("global: 64", f"global: {most + group}"), "E332")
    assert first == f"batch.global: {most}"


def test_a_job_larger_than_its_cluster_is_refused_with_sizes_that_fit() -> None:
    scenario = load_scenario("dp530b")
    check_scenario(scenario, [size_rule(8, 280)], kept=RULES)
    with pytest.raises(InputError) as caught:
        check_scenario(scenario, [size_rule(8, 279)], kept=RULES)
    (problem,) = caught.value.problems
    assert problem.code == "E317"
    assert "8 x 35 x 8 = 2240 GPUs (hardware.cluster.num_nodes: 280), but" in problem.message
    assert str(problem.location).endswith("dp530b.yaml:14:9")
    assert problem.fix is not None
    assert problem.fix.startswith("write parallelism.data: 4 or 2, ")
