"""DeepSpeed's JSON over the model of a config.json."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.scenario import Scenario
from tests.helpers.imported import import_deepspeed, written

MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
ZERO = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}}


def config(*sections: dict[str, Any]) -> str:
    """Write DeepSpeed's JSON and a model's config.json beside it; return the name of the JSON."""
    written("config.json", json.dumps(MODEL))
    merged: dict[str, Any] = {}
    for section in sections:
        merged |= section
    return written("ds.json", json.dumps(merged, indent=2))


def imported(*sections: dict[str, Any], gpus: int | None = 16) -> Scenario:
    return import_deepspeed(config(*sections), gpus=gpus)[0]


def zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": keys}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_zero_stage_is_that_of_the_scenario(stage: int) -> None:
    scenario = imported({**ZERO, "bf16": {}, "fp16": {"enabled": True}}, zero(stage=stage))
    assert scenario.memory.zero_stage == stage
    assert scenario.precision.gradients == "fp16"
    # Only stage 3 overlaps reductions by default.
    assert scenario.overlap.data_parallel == (stage == 3)
    assert (scenario.parallelism.data, scenario.batch.micro, scenario.batch.global_) == (16, 2, 64)


def test_bf16_without_zero_shards_the_optimizer_states() -> None:
    scenario = imported(ZERO)
    assert (scenario.memory.zero_stage, scenario.precision.gradients) == (1, "fp32")
    assert imported(ZERO, zero(stage=2)).precision.gradients == "bf16"
    types = {"data_types": {"grad_accum_dtype": "fp32"}}
    assert imported(ZERO, zero(stage=2), types).precision.gradients == "fp32"


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        (zero(stage=2, offload_optimizer={"device": "cpu"}), "memory.offload_optimizer", True),
        (zero(stage=2, offload_optimizer={"device": "none"}), "memory.offload_optimizer", False),
        (zero(stage=2, cpu_offload=True), "memory.offload_optimizer", True),
        (zero(stage=3, offload_optimizer={"device": "nvme"}), "memory.offload_optimizer", True),
        (zero(stage=2, overlap_comm=True), "overlap.data_parallel", True),
        (zero(stage=3, mics_shard_size=8), "memory.shard_over", 8),
        ({"zero_optimization": True}, "memory.zero_stage", 1),
        ({"tensor_parallel": {"autotp_size": 2}}, "parallelism.tensor", 2),
        ({"bf16": {}, "bfloat16": {"enabled": True}}, "precision.compute", "bf16"),
        ({"bf16": {"enabled": False}}, "precision.compute", "fp32"),
    ],
)
def test_a_key_sets_a_field(keys: dict[str, Any], field: str, value: object) -> None:
    scenario = imported(ZERO, keys)
    section, name = field.split(".")
    assert getattr(getattr(scenario, section), name) == value


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 16))
def test_the_batch_follows_from_two_of_three_sizes(micro: int, steps: int, gpus: int) -> None:
    """All sequences are micro x accumulation x replicas; one step, or one sequence, by default."""
    names = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
    total = micro * steps * gpus
    for sizes, said, expected in (
        ((total, micro, steps), gpus, (micro, total)),
        ((total, micro, steps), None, (micro, total)),
        ((total, micro, None), gpus, (micro, total)),
        ((total, None, steps), gpus, (micro, total)),
        ((total, None, None), gpus, (micro * steps, total)),
        ((None, micro, steps), gpus, (micro, total)),
        ((None, micro, None), gpus, (micro, micro * gpus)),
        ((None, None, None), gpus, (1, gpus)),
    ):
        keys = {name: size for name, size in zip(names, sizes, strict=True) if size}
        scenario = imported({"fp16": {"enabled": True}, **keys}, gpus=said)
        assert (scenario.batch.micro, scenario.batch.global_) == expected
        assert scenario.parallelism.data == gpus


def test_a_config_without_a_model_says_how_to_name_one() -> None:
    config(ZERO)
    Path("config.json").rename("other.json")
    with pytest.raises(InputError, match=r"import ds.json --model config.json"):
        import_deepspeed("ds.json")
    scenario, _ = import_deepspeed("ds.json", model="other.json", gpus=16)
    assert scenario == imported(ZERO)
