"""The software stack decides which communication overlaps, where a layout can have it."""

from typing import Any

import pytest

from simtrain.scenario import Scenario, check_scenario
from simtrain.studies.simulation import simulate

INTERLEAVED: dict[str, Any] = {"pipeline": 4, "interleave": 2, "data": 2}
GATHERED = {"data_parallel": True, "parameter_gather": True}


def scenario(stack: str, split: dict[str, Any], overlap: dict[str, Any] | None = None) -> Scenario:
    return Scenario.model_validate(
        {
            "model": {
                "num_layers": 8,
                "hidden_size": 1024,
                "num_attention_heads": 8,
                "seq_length": 256,
                "vocab_size": 1024,
            },
            "batch": {"micro": 1, "global": 16},
            "parallelism": split,
            "memory": {"zero_stage": 1 if split.get("data", 1) > 1 else 0},
            "overlap": GATHERED if overlap is None else overlap,
            "software": stack,
            "cluster": "h100_sxm",
        }
    )


def overlaps(one: Scenario) -> tuple[bool, bool, bool]:
    return one.overlaps_pipeline, one.aligns_gradient_reduction, one.aligns_parameter_gather


@pytest.mark.parametrize(
    ("split", "overlap", "expected"),
    [
        (INTERLEAVED, GATHERED, (True, True, True)),
        (INTERLEAVED, {"data_parallel": True}, (True, True, False)),
        (INTERLEAVED, {}, (True, False, False)),
        (INTERLEAVED | {"data": 1}, {"data_parallel": True}, (True, False, False)),
        ({"pipeline": 2, "interleave": 2}, {}, (True, False, False)),
        ({"pipeline": 4, "data": 2}, GATHERED, (False, True, False)),
        ({"data": 2}, GATHERED, (False, False, False)),
    ],
)
def test_megatron_core_overlaps_what_a_layout_can_overlap(
    split: dict[str, Any], overlap: dict[str, Any], expected: tuple[bool, bool, bool]
) -> None:
    one = scenario("megatron_core", split, overlap)
    assert overlaps(one) == expected
    check_scenario(one)


CORES = ["megatron_core", "megatron_bridge", "nemo", "mlperf_nvidia"]
RECIPES = CORES[1:]


def data_parallel(one: Scenario) -> tuple[bool, bool, str]:
    return one.overlaps_data_parallel, one.overlaps_parameter_gather, one.gradient_type


@pytest.mark.parametrize("stack", RECIPES)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (True, True, "bf16")),
        ({"memory.zero_stage": 0}, (True, False, "bf16")),
        ({"precision.compute": "fp8"}, (True, True, "bf16")),
        ({"precision.compute": "fp16"}, (True, True, "fp32")),
        ({"overlap.data_parallel": False}, (False, False, "bf16")),
        ({"overlap.parameter_gather": False}, (True, False, "bf16")),
        ({"precision.gradients": "fp32"}, (True, True, "fp32")),
    ],
)
def test_recipes_overlap_and_reduce_in_bf16_what_a_scenario_leaves_open(
    stack: str, changes: dict[str, Any], expected: tuple[bool, bool, str]
) -> None:
    one = scenario(stack, {"pipeline": 4, "data": 2}, {}).replace(changes)
    assert data_parallel(one) == expected
    check_scenario(one)
    old = one.replace({"software": "megatron_core"})
    is_written = "precision.gradients" in changes
    assert data_parallel(old) == (False, False, "fp32") or is_written


@pytest.mark.parametrize("stack", RECIPES)
def test_defaults_of_recipes_take_the_time_and_memory_of_the_same_values_written(
    stack: str,
) -> None:
    plain = scenario(stack, INTERLEAVED, {})
    written = plain.replace({"overlap": GATHERED, "precision.gradients": "bf16"})
    others = plain.replace({"overlap.data_parallel": False, "precision.gradients": "fp32"})
    same, other = simulate(written), simulate(others)
    result = simulate(plain)
    assert result.iteration_time_s == same.iteration_time_s < other.iteration_time_s
    assert result.memory.peaks_bytes == same.memory.peaks_bytes != other.memory.peaks_bytes
