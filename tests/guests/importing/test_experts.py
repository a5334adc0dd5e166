"""Imports of models with experts: from Megatron-LM, Hugging Face and torchtitan."""

import json
from pathlib import Path
from typing import Any

import pytest

from simtrain import models
from simtrain.errors import InputError
from simtrain.guests.importing.layer_patterns import dense_and_frequency
from simtrain.scenario import load_scenario
from simtrain.scenario.model import Experts
from simtrain.studies.simulation import simulate_memory
from tests.helpers.command_line import call
from tests.helpers.imported import (
    BASE,
    EXPERTS,
    import_hugging_face,
    import_megatron,
    import_torchtitan,
    text_of,
    written,
)

# ------------------------------------------------------------------------------------ Megatron-LM

MIXTRAL = Path(__file__).with_name("experts.sh").read_text("utf-8")


def test_a_script_with_experts_is_imported_and_runs() -> None:
    scenario, text = import_megatron(written("run.sh", MIXTRAL))
    assert scenario.model.experts == Experts(num=8, top_k=2, ffn_hidden_size=1792)
    split = scenario.parallelism
    assert (split.tensor, split.data, split.expert, split.expert_tensor) == (2, 4, 4, 1)
    assert split.expert_dispatch == "all_to_all"
    lines = text.splitlines()
    assert "    ffn_hidden_size: 1792         # --ffn-hidden-size, line 10" in lines
    assert "  expert: 4                       # --expert-model-parallel-size, line 37" in lines
    assert "# - no --moe-grouped-gemm, --moe-permute-fusion, --moe-router-fusion:" in text
    loaded = load_scenario(written("scenario.yaml", text))
    assert loaded.model_dump(exclude={"name"}) == scenario.model_dump(exclude={"name"})
    assert call("run", "scenario.yaml").exit_code == 0


def test_first_dense_layers_and_frequency_reproduce_the_pattern() -> None:
    for bits in range(1, 2**7):
        pattern = [bool(bits >> layer & 1) for layer in range(7)]
        if found := dense_and_frequency(pattern):
            one = Experts(
                num=1,
                top_k=1,
                ffn_hidden_size=1,
                first_dense_layers=found[0],
                layer_frequency=found[1],
            )
            assert [one.has_layer(layer) for layer in range(7)] == pattern
    assert dense_and_frequency([False] * 3) is None


def test_arguments_of_experts_that_are_not_modelled_are_noted_only_with_experts() -> None:
    arguments = "--moe-z-loss-coeff 1e-3 --moe-router-dtype fp64 --moe-deepep-num-sms 24"
    assert text_of(f"{BASE} {arguments}") == text_of(BASE)
    text = text_of(f"{BASE} {EXPERTS} {arguments}")
    for name in ("moe-z-loss-coeff", "moe-router-dtype", "moe-deepep-num-sms"):
        assert f"# - --{name}" in text


# ----------------------------------------------------------------------------------- Hugging Face

QWEN3 = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
DEEPSEEK_V2 = {
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_attention_heads": 128,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 60,
    "q_lora_rank": 1536,
    "scoring_func": "softmax",
    "topk_method": "group_limited_greedy",
    "vocab_size": 102400,
}


def config_of(config: dict[str, Any], **keys: Any) -> str:
    return written("config.json", json.dumps(config | keys, indent=1))


@pytest.mark.parametrize(
    ("config", "name"), [(QWEN3, "qwen3_30b_a3b"), (MIXTRAL_8X7B, "mixtral_8x7b")]
)
def test_a_published_config_gives_the_shipped_model(config: dict[str, Any], name: str) -> None:
    sizes = ["model.seq_length=4096", "model.vocab_size=" + str(config["vocab_size"])]
    model = import_hugging_face(config_of(config), sizes)[0].model
    assert model.model_dump() == getattr(models, name).model_dump()


def test_shared_experts_and_their_gate() -> None:
    shared = config_of(QWEN3, model_type="qwen2_moe", mlp_only_layers=[0])
    scenario, text = import_hugging_face(shared)
    assert scenario.model.experts == Experts(
        num=128, top_k=8, ffn_hidden_size=768, shared_ffn_hidden_size=5632, shared_gate=True
    )
    assert "# - mlp_only_layers [0], line 10: layers without experts" in text
    scenario, text = import_hugging_face(config_of(DEEPSEEK_V2, n_group=8, topk_group=3))
    assert scenario.model.ffn_hidden_size == 12288
    assert scenario.model.experts == Experts(
        num=160,
        top_k=6,
        ffn_hidden_size=1536,
        shared_ffn_hidden_size=3072,
        first_dense_layers=1,
        router_groups=8,
        router_group_top_k=3,
    )
    assert "topk_method" not in text and "scoring_func" not in text
    greedy = import_hugging_face(config_of(DEEPSEEK_V2, topk_method="greedy"))[0].model.experts
    assert greedy is not None and greedy.router_groups is None


def test_a_config_without_experts_has_an_mlp() -> None:
    for config, key in ((QWEN3, "num_experts"), (DEEPSEEK_V2, "n_routed_experts")):
        for none in (0, None):
            model = import_hugging_face(config_of(config, **{key: none}))[0].model
            assert model.experts is None
            assert model.ffn_hidden_size == config["intermediate_size"]


def test_a_missing_number_of_chosen_experts_is_refused() -> None:
    config = {key: value for key, value in DEEPSEEK_V2.items() if key != "num_experts_per_tok"}
    with pytest.raises(InputError, match='E873 "num_experts_per_tok" is missing'):
        import_hugging_face(config_of(config))


# -------------------------------------------------------------------------------------- torchtitan

JOB = """\
[model]
name = "qwen3"
flavor = "30B-A3B"

[training]
local_batch_size = 1
seq_len = 4096

[parallelism]
data_parallel_shard_degree = 8
expert_parallel_degree = 4

[activation_checkpoint]
mode = "full"
"""


def test_a_job_of_torchtitan_with_experts() -> None:
    scenario, text = import_torchtitan(written("job.toml", JOB))
    split = scenario.parallelism
    assert scenario.model.experts == models.qwen3_30b_a3b.experts
    assert (split.data, split.expert, split.expert_tensor) == (8, 4, 1)
    assert (scenario.memory.zero_stage, scenario.fully_shards) == (3, True)
    assert "FSDP" not in text
    assert simulate_memory(scenario).fullest.peak_bytes > 0
    pipeline = JOB.replace("[parallelism]", "[parallelism]\npipeline_parallel_degree = 2")
    stages = import_torchtitan(written("job.toml", pipeline))[0].memory
    assert (stages.zero_stage, stages.reshard_after_forward) == (3, False)
    assert not stages.reduce_every_microbatch
    shards = "data_parallel_shard_degree = 4\ndata_parallel_replicate_degree = 2"
    hybrid = JOB.replace("data_parallel_shard_degree = 8", shards)
    memory = import_torchtitan(written("job.toml", hybrid))[0].memory
    assert (memory.zero_stage, memory.shard_over) == (3, 4)
    backend = JOB.replace(
        "[parallelism]", '[parallelism]\nexpert_parallel_comm_backend = "hybridep"'
    )
    assert scenario.expert_dispatch == "all_to_all"
    dispatch = import_torchtitan(written("job.toml", backend))[0].parallelism.expert_dispatch
    assert dispatch == "hybridep"
    whole = import_torchtitan(written("job.toml", JOB.replace("degree = 4", "degree = 1")))[0]
    assert (whole.parallelism.expert, whole.memory.zero_stage) == (1, 3)


def test_torchtitan_has_no_multi_token_prediction() -> None:
    job = JOB.replace("qwen3", "deepseek_v3").replace("30B-A3B", "671B")
    model = import_torchtitan(written("job.toml", job))[0].model
    assert model.mtp_num_layers == 0 < models.deepseek_v3.mtp_num_layers
    assert model.experts == models.deepseek_v3.experts


def test_degrees_of_experts_are_not_read_without_experts() -> None:
    dense = JOB.replace("30B-A3B", "8B")
    assert import_torchtitan(written("job.toml", dense))[0].parallelism.expert == 1


# -------------------------------------------------------------------------- names in a scenario


@pytest.mark.parametrize(
    ("section", "key", "instead"),
    [
        ("model.experts", "moe_router_topk", "top_k"),
        ("model.experts", "num_local_experts", "num"),
        ("parallelism", "expert_model_parallel_size", "expert"),
        ("parallelism", "expert_tensor_parallel_degree", "expert_tensor"),
    ],
)
def test_names_of_other_programs_are_answered_with_ours(
    section: str, key: str, instead: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("mixtral_8x7b", overrides=[f"{section}.{key}=2"])
    assert f'unknown key "{key}" in {section}' in str(caught.value)
    assert f"fix: write {section}.{instead}. The keys" in str(caught.value)
