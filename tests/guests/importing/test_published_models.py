"""Configs of published models: each has as many parameters as its authors say."""

import json
from pathlib import Path

import pytest

from simtrain.iteration.plan import Plan
from tests.helpers.imported import import_hugging_face

ATTENTION = "num_attention_heads", "num_key_value_heads", "head_dim"
Sizes = tuple[int | None, ...]
MODELS: dict[str, tuple[str, float, Sizes, Sizes, dict[str, object]]] = {
    # model_type, billions of parameters, (layers, width, MLP, vocabulary), heads, further keys
    "Llama 3.1 8B": ("llama", 8.03, (32, 4096, 14336, 128256), (32, 8, None), {}),
    "Qwen3 32B": ("qwen3", 32.8, (64, 5120, 25600, 151936), (64, 8, 128), {}),
    "Gemma 7B": ("gemma", 8.54, (28, 3072, 24576, 256000), (16, 16, 256), {}),
    "Gemma 3 27B": ("gemma3", 27.0, (62, 5376, 21504, 262208), (32, 16, 128), {}),
    "gpt-oss 20B": (
        *("gpt_oss", 20.9, (24, 2880, 2880, 201088), (64, 8, 64)),
        {"num_local_experts": 32, "swiglu_limit": 7.0, "sliding_window": 128},
    ),
    "OLMo 2 13B": ("olmo2", 13.7, (40, 5120, 13824, 100352), (40, 40, None), {}),
    "OLMoE 7B": ("olmoe", 6.92, (16, 2048, 1024, 50304), (16, 16, None), {}),
    "Phi-3 mini": ("phi3", 3.82, (32, 3072, 8192, 32064), (32, 32, None), {"resid_pdrop": 0.0}),
    "Granite 3 8B": (
        *("granite", 8.17, (40, 4096, 12800, 49155), (32, 8, None)),
        {"tie_word_embeddings": True, "residual_multiplier": 0.22},
    ),
    "StarCoder2 15B": (
        *("starcoder2", 15.96, (40, 6144, 24576, 49152), (48, 4, None)),
        {"tie_word_embeddings": False, "use_bias": True},
    ),
    "Command R": ("cohere", 34.98, (40, 8192, 22528, 256000), (64, 64, None), {}),
    "Mixtral 8x7B": ("mixtral", 46.7, (32, 4096, 14336, 32000), (32, 8, None), {}),
    "Qwen3 235B-A22B": (
        *("qwen3_moe", 235.1, (94, 4096, 12288, 151936), (64, 4, 128)),
        {"moe_intermediate_size": 1536, "mlp_only_layers": []},
    ),
    "Llama 4 Scout": ("llama4", 107.8, (48, 5120, 8192, 202048), (40, 8, 128), {}),
    "Llama 4 Maverick": (
        *("llama4", 400.7, (48, 5120, 8192, 202048), (40, 8, 128)),
        {"num_local_experts": 128, "interleave_moe_layer_step": 2},
    ),
    "DeepSeek-V2": (
        *("deepseek_v2", 235.7, (60, 5120, 12288, 102400), (128, 128, None)),
        {
            "n_routed_experts": 160,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1536,
            "first_k_dense_replace": 1,
            "topk_method": "group_limited_greedy",
            "n_group": 8,
            "topk_group": 3,
        },
    ),
    "DeepSeek-V3": ("deepseek_v3", 671.0, (61, 7168, 18432, 129280), (128, 128, None), {}),
    "GLM-4.5 Air": (
        *("glm4_moe", 106.9, (46, 4096, 10944, 151552), (96, 8, 128)),
        {"use_qk_norm": False, "attention_bias": True},
    ),
    "Gemma 3 4B": ("gemma3", 3.88, (34, 2560, 10240, None), (None, None, None), {}),
    "DeepSeek-V2-Lite": (
        *("deepseek_v2", 15.71, (27, 2048, 10944, 102400), (16, 16, None)),
        {
            "q_lora_rank": None,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
            "topk_method": "greedy",
        },
    ),
}
NESTED = "llama4", "gemma3"


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_has_its_parameters(name: str, tmp_path: Path) -> None:
    kind, billions, (layers, width, mlp, vocabulary), heads, further = MODELS[name]
    keys = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": mlp,
        **({"vocab_size": vocabulary, "max_position_embeddings": 4096} if vocabulary else {}),
        **{key: value for key, value in zip(ATTENTION, heads, strict=True) if value},
        **further,
    }
    config = {"text_config": keys, "vision_config": {}} if kind in NESTED else keys
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": kind, **config}), "utf-8")
    scenario, _ = import_hugging_face(str(file))
    assert Plan.of(scenario, 8).num_parameters == pytest.approx(1e9 * billions, rel=0.01)
