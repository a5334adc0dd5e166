"""`simtrain import`: hybrid models with Mamba-2 layers."""

import json
from pathlib import Path
from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.guests.importing.megatron.export import megatron_script
from simtrain.scenario import Scenario, load_scenario
from tests.helpers.imported import bridge_draft, import_hugging_face, import_megatron, written
from tests.helpers.toys import plan_of

SIZES = (
    "--hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4 --bf16"
)
SPEC = "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"


def megatron(words: str, *overrides: str) -> Scenario:
    return import_megatron(f"pretrain_hybrid.py {SIZES} {words}", overrides)[0]


def test_a_pattern_with_stages_becomes_pattern_and_layout() -> None:
    """As in Megatron-LM's functional test hybrid_mr_mcore_te_tp1_pp2_vpp2_cp1."""
    words = f"--hybrid-layer-pattern 'M-M*-|M-M-|M*-|M-' {SPEC} --global-batch-size 8"
    scenario = megatron(f"{words} --pipeline-model-parallel-size 2")
    assert scenario.model.layer_pattern == "M-M*-M-M-M*-M-"
    assert scenario.model.num_layers == 14
    assert scenario.parallelism.layout == "Et*5|t*4|t*3|t*2L"
    assert scenario.parallelism.interleave == 2
    assert scenario.software.stack == "megatron_core"
    assert scenario.model.mamba == type(scenario.model.mamba)()


def test_sizes_of_mamba_layers() -> None:
    words = (
        "--num-layers 4 --is-hybrid-model --hybrid-override-pattern 'M-M*' --mamba-state-dim 256"
    )
    mamba = megatron(f"{words} --mamba-num-heads 24 --mamba-head-dim 80 --mamba-num-groups 4").model
    assert mamba.mamba
    assert mamba.mamba.model_dump() == {
        **{"num_heads": 24, "head_dim": 80, "state_dim": 256, "num_groups": 4, "chunk_size": 128}
    }


@pytest.mark.parametrize("mark", ["--is-hybrid-model", SPEC, ""])
def test_a_hybrid_model_without_a_pattern_is_refused(mark: str) -> None:
    with pytest.raises(InputError, match=r"E877 .* layers without a pattern"):
        megatron(f"--num-layers 4 {mark}")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--num-layers 4 --hybrid-override-pattern MGM-", "'G', a gated delta net"),
        ("--num-layers 4 --hybrid-override-pattern M+M-", "'+', latent attention"),
        ("--hybrid-layer-pattern 'MM/*-/*-'", "token prediction after a hybrid model"),
    ],
)
def test_other_layers_are_refused_by_their_name(words: str, part: str) -> None:
    with pytest.raises(InputError) as refused:
        megatron(words)
    assert refused.value.problems[0].code == "E877"
    assert part in str(refused.value)


def test_an_exported_hybrid_model_is_imported_again() -> None:
    scenario = load_scenario("nemotron_h_8b")
    again = import_megatron(written("train.sh", megatron_script(scenario)))[0]
    assert again.model == scenario.model


NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attention_head_dim": 128,
    "intermediate_size": 21504,
    "mlp_hidden_act": "relu2",
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "use_bias": False,
    "vocab_size": 131072,
    "torch_dtype": "bfloat16",
}


def hugging_face(config: dict[str, Any], *overrides: str) -> Scenario:
    return import_hugging_face(written("config.json", json.dumps(config, indent=1)), overrides)[0]


def test_nemotron_h_is_the_shipped_model() -> None:
    assert hugging_face(NEMOTRON_H).model == load_scenario("nemotron_h_8b").model


def test_nemotron_3_nano_has_the_published_parameters() -> None:
    """31.6 billion parameters (NVIDIA, Nemotron 3 Nano, December 2025): experts in a pattern."""
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    nano = NEMOTRON_H | {
        "hidden_size": 2688,
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "intermediate_size": 1856,
        "mamba_num_heads": 64,
        "n_routed_experts": 128,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    }
    del nano["attention_head_dim"]
    assert plan_of(hugging_face(nano)).num_parameters == 31_577_937_344


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("zamba2", "an attention block that several layers share"),
        ("qwen3_next", "linear attention (Gated DeltaNet)"),
        ("minimax", "linear attention (lightning attention)"),
        ("kimi_linear", "linear attention (Kimi delta attention)"),
    ],
)
def test_other_linear_attention_is_refused_by_its_name(kind: str, part: str) -> None:
    with pytest.raises(InputError) as refused:
        hugging_face({"model_type": kind})
    assert refused.value.problems[0].code == "E877"
    assert part in str(refused.value)


PRINTED = Path(__file__).with_name("hybrid_log.txt").read_text("utf-8")


def test_a_config_of_megatron_bridge_is_the_shipped_model() -> None:
    scenario, _ = bridge_draft(written("config.yaml", PRINTED), ["parallelism.data=4"]).finished()
    model, shipped = scenario.model, load_scenario("nemotron_h_8b").model
    assert model.model_dump() == shipped.model_dump()
    assert scenario.software.stack == "megatron_bridge"
