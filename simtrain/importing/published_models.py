"""Models that other tools choose by a name, with the config.json that was published for each.

A config of torchtitan, NeMo or Megatron-Bridge contains such a name in place of sizes. The keys are
those of Hugging Face, and `simtrain import hf` reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from simtrain.base.strict_yaml import Document, Positions
from simtrain.importing.hugging_face.mapping import fields_of_config


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """The fields of a published model, and its parts that are not modelled.

    Args:
        name: its name on Hugging Face.
        fields: the section `model` of its scenario.
        notes: one sentence for each part that is not modelled.
    """

    name: str
    fields: dict[str, Any]
    notes: tuple[str, ...]


_TUNED = re.compile(r"(?:-(?:instruct|base|chat|it|pt|hf|v0\.\d|\d{4}))+$")
"""The end of a name that tells how a model was tuned or released."""


def _config(kind: str, sizes: str, **others: Any) -> dict[str, Any]:
    """Return a config with layers, hidden size, heads, query groups, MLP size, tokens, length."""
    keys = (
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
        *("intermediate_size", "vocab_size", "max_position_embeddings"),
    )
    numbers = [int(size) for size in sizes.split()]
    return {"model_type": kind, **dict(zip(keys, numbers, strict=True)), **others}


def _nemotron_h(sizes: str, pattern: str, **others: Any) -> dict[str, Any]:
    numbers = f"{len(pattern)} {sizes} 131072 8192"
    mamba = {"ssm_state_size": 128, "n_groups": 8, "mamba_head_dim": 64} | others
    return _config("nemotron_h", numbers, hybrid_override_pattern=pattern, **mamba, **_UNTIED)


_TIED = {"tie_word_embeddings": True}
_UNTIED = {"tie_word_embeddings": False}
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_QWEN3_HEAD = {"head_dim": 128}
_GROUPS_OF_V3: dict[str, Any] = {
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
}

_TEN, _EIGHT = "M-M-M-M-M*-", "M-M-M-M*-"
_PATTERN_OF_8B = f"{_EIGHT}{3 * _TEN}M-M-M-M-M-"

CONFIGS: dict[str, dict[str, Any]] = {
    "nvidia/Nemotron-H-4B-Base-8K": _nemotron_h(
        "3072 32 8 12288", _PATTERN_OF_8B, attention_head_dim=128, mamba_num_heads=112
    ),
    "nvidia/Nemotron-H-8B-Base-8K": _nemotron_h(
        "4096 32 8 21504", _PATTERN_OF_8B, attention_head_dim=128, mamba_num_heads=128
    ),
    "nvidia/Nemotron-H-47B-Base-8K": _nemotron_h(
        "8192 64 8 30720",
        f"{8 * 'M-'}M*-{9 * 'M-'}M*-{2 * _TEN}{6 * 'M-'}M---MM---M-M*-{5 * 'M-'}",
        attention_head_dim=128,
        mamba_num_heads=256,
        ssm_state_size=256,
    ),
    "nvidia/Nemotron-H-56B-Base-8K": _nemotron_h(
        "8192 64 8 32768",
        f"{_EIGHT}{9 * _TEN}M-M-M-M-M-",
        attention_head_dim=128,
        mamba_num_heads=256,
        ssm_state_size=256,
    ),
    "meta-llama/Llama-2-7b-hf": _config("llama", "32 4096 32 32 11008 32000 4096", **_UNTIED),
    "meta-llama/Llama-2-13b-hf": _config("llama", "40 5120 40 40 13824 32000 4096", **_UNTIED),
    "meta-llama/Llama-2-70b-hf": _config("llama", "80 8192 64 8 28672 32000 4096", **_UNTIED),
    "meta-llama/Meta-Llama-3-8B": _config("llama", "32 4096 32 8 14336 128256 8192", **_UNTIED),
    "meta-llama/Meta-Llama-3-70B": _config("llama", "80 8192 64 8 28672 128256 8192", **_UNTIED),
    "meta-llama/Meta-Llama-3.1-8B": _config("llama", "32 4096 32 8 14336 128256 131072", **_UNTIED),
    "meta-llama/Meta-Llama-3.1-70B": _config(
        "llama", "80 8192 64 8 28672 128256 131072", **_UNTIED
    ),
    "meta-llama/Meta-Llama-3.1-405B": _config(
        "llama", "126 16384 128 8 53248 128256 131072", **_UNTIED
    ),
    "meta-llama/Llama-3.2-1B": _config("llama", "16 2048 32 8 8192 128256 131072", **_TIED),
    "meta-llama/Llama-3.2-3B": _config("llama", "28 3072 24 8 8192 128256 131072", **_TIED),
    "mistralai/Mistral-7B-v0.1": _config(
        "mistral", "32 4096 32 8 14336 32000 32768", sliding_window=4096, **_UNTIED
    ),
    "mistralai/Mistral-Nemo-Base-2407": _config(
        "mistral", "40 5120 32 8 14336 131072 128000", head_dim=128, sliding_window=None, **_UNTIED
    ),
    "mistralai/Mixtral-8x7B-v0.1": _config(
        "mixtral",
        "32 4096 32 8 14336 32000 32768",
        num_local_experts=8,
        num_experts_per_tok=2,
        **_UNTIED,
    ),
    "mistralai/Mixtral-8x22B-v0.1": _config(
        "mixtral",
        "56 6144 48 8 16384 32768 65536",
        num_local_experts=8,
        num_experts_per_tok=2,
        **_UNTIED,
    ),
    "Qwen/Qwen2-0.5B": _config("qwen2", "24 896 14 2 4864 151936 131072", **_TIED),
    "Qwen/Qwen2-1.5B": _config("qwen2", "28 1536 12 2 8960 151936 131072", **_TIED),
    "Qwen/Qwen2-7B": _config("qwen2", "28 3584 28 4 18944 152064 131072", **_UNTIED),
    "Qwen/Qwen2-72B": _config("qwen2", "80 8192 64 8 29568 152064 131072", **_UNTIED),
    "Qwen/Qwen2.5-0.5B": _config("qwen2", "24 896 14 2 4864 151936 32768", **_TIED),
    "Qwen/Qwen2.5-1.5B": _config("qwen2", "28 1536 12 2 8960 151936 131072", **_TIED),
    "Qwen/Qwen2.5-3B": _config("qwen2", "36 2048 16 2 11008 151936 32768", **_TIED),
    "Qwen/Qwen2.5-7B": _config("qwen2", "28 3584 28 4 18944 152064 131072", **_UNTIED),
    "Qwen/Qwen2.5-14B": _config("qwen2", "48 5120 40 8 13824 152064 131072", **_UNTIED),
    "Qwen/Qwen2.5-32B": _config("qwen2", "64 5120 40 8 27648 152064 131072", **_UNTIED),
    "Qwen/Qwen2.5-72B": _config("qwen2", "80 8192 64 8 29568 152064 131072", **_UNTIED),
    "Qwen/Qwen3-0.6B": _config("qwen3", "28 1024 16 8 3072 151936 40960", **_TIED, **_QWEN3_HEAD),
    "Qwen/Qwen3-1.7B": _config("qwen3", "28 2048 16 8 6144 151936 40960", **_TIED, **_QWEN3_HEAD),
    "Qwen/Qwen3-4B": _config("qwen3", "36 2560 32 8 9728 151936 40960", **_TIED, **_QWEN3_HEAD),
    "Qwen/Qwen3-8B": _config("qwen3", "36 4096 32 8 12288 151936 40960", **_UNTIED, **_QWEN3_HEAD),
    "Qwen/Qwen3-14B": _config("qwen3", "40 5120 40 8 17408 151936 40960", **_UNTIED, **_QWEN3_HEAD),
    "Qwen/Qwen3-32B": _config("qwen3", "64 5120 64 8 25600 151936 40960", **_UNTIED, **_QWEN3_HEAD),
    "Qwen/Qwen3-30B-A3B": _config(
        "qwen3_moe",
        "48 2048 32 4 6144 151936 40960",
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        **_UNTIED,
        **_QWEN3_HEAD,
    ),
    "Qwen/Qwen3-235B-A22B": _config(
        "qwen3_moe",
        "94 4096 64 4 12288 151936 40960",
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=1536,
        **_UNTIED,
        **_QWEN3_HEAD,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": _config(
        "deepseek_v2",
        "27 2048 16 16 10944 102400 163840",
        q_lora_rank=None,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        topk_method="greedy",
        **_LATENT,
        **_UNTIED,
    ),
    "deepseek-ai/DeepSeek-V2": _config(
        "deepseek_v2",
        "60 5120 128 128 12288 102400 163840",
        q_lora_rank=1536,
        n_routed_experts=160,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1536,
        first_k_dense_replace=1,
        topk_method="group_limited_greedy",
        n_group=8,
        topk_group=3,
        **_LATENT,
        **_UNTIED,
    ),
    "deepseek-ai/DeepSeek-V3": _config(
        "deepseek_v3",
        "61 7168 128 128 18432 129280 163840",
        q_lora_rank=1536,
        n_routed_experts=256,
        first_k_dense_replace=3,
        n_group=8,
        topk_group=4,
        num_nextn_predict_layers=1,
        **_GROUPS_OF_V3,
        **_LATENT,
        **_UNTIED,
    ),
    "moonshotai/Kimi-K2-Base": _config(
        "kimi_k2",
        "61 7168 64 64 18432 163840 131072",
        q_lora_rank=1536,
        n_routed_experts=384,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        num_nextn_predict_layers=0,
        **_GROUPS_OF_V3,
        **_LATENT,
        **_UNTIED,
    ),
    "moonshotai/Moonlight-16B-A3B": _config(
        "deepseek_v3",
        "27 2048 16 16 11264 163840 8192",
        q_lora_rank=None,
        n_routed_experts=64,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        num_nextn_predict_layers=0,
        **_GROUPS_OF_V3
        | {"n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408},
        **_LATENT,
        **_UNTIED,
    ),
    "openai/gpt-oss-20b": _config(
        "gpt_oss",
        "24 2880 64 8 2880 201088 131072",
        num_local_experts=32,
        num_experts_per_tok=4,
        **_UNTIED,
    ),
    "openai/gpt-oss-120b": _config(
        "gpt_oss",
        "36 2880 64 8 2880 201088 131072",
        num_local_experts=128,
        num_experts_per_tok=4,
        **_UNTIED,
    ),
    "google/gemma-2b": _config("gemma", "18 2048 8 1 16384 256000 8192", head_dim=256),
    "google/gemma-7b": _config("gemma", "28 3072 16 16 24576 256000 8192", head_dim=256),
    "google/gemma-2-2b": _config("gemma2", "26 2304 8 4 9216 256000 8192", head_dim=256),
    "google/gemma-2-9b": _config("gemma2", "42 3584 16 8 14336 256000 8192", head_dim=256),
    "google/gemma-2-27b": _config("gemma2", "46 4608 32 16 36864 256000 8192", head_dim=128),
    "google/gemma-3-1b-pt": _config(
        "gemma3_text", "26 1152 4 1 6912 262144 32768", head_dim=256, sliding_window=512
    ),
    "microsoft/Phi-3-mini-4k-instruct": _config(
        "phi3", "32 3072 32 32 8192 32064 4096", sliding_window=2047, **_UNTIED
    ),
    "bigcode/starcoder2-3b": _config(
        "starcoder2", "30 3072 24 2 12288 49152 16384", use_bias=True, sliding_window=4096
    ),
    "bigcode/starcoder2-7b": _config(
        "starcoder2", "32 4608 36 4 18432 49152 16384", use_bias=True, sliding_window=4096
    ),
    "bigcode/starcoder2-15b": _config(
        "starcoder2", "40 6144 48 4 24576 49152 16384", use_bias=True, sliding_window=4096
    ),
    "allenai/OLMoE-1B-7B-0125": _config(
        "olmoe",
        "16 2048 16 16 1024 50304 4096",
        num_experts=64,
        num_experts_per_tok=8,
        **_UNTIED,
    ),
    "zai-org/GLM-4.5": _config(
        "glm4_moe",
        "92 5120 96 8 12288 151552 131072",
        head_dim=128,
        n_routed_experts=160,
        n_shared_experts=1,
        num_experts_per_tok=8,
        moe_intermediate_size=1536,
        first_k_dense_replace=3,
        num_nextn_predict_layers=1,
        use_qk_norm=True,
        attention_bias=True,
        **_UNTIED,
    ),
    "zai-org/GLM-4.5-Air": _config(
        "glm4_moe",
        "46 4096 96 8 10944 151552 131072",
        head_dim=128,
        n_routed_experts=128,
        n_shared_experts=1,
        num_experts_per_tok=8,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        num_nextn_predict_layers=1,
        use_qk_norm=False,
        attention_bias=True,
        **_UNTIED,
    ),
}
"""The config of each model by its name on Hugging Face, with its keys that set sizes."""


def published_model(name: str) -> PublishedModel:
    """Return a published model by its name on Hugging Face.

    Raises:
        KeyError: simtrain does not have its config.
    """
    fields, notes = fields_of_config(Document(CONFIGS[name], Positions({})), name)
    return PublishedModel(name, fields, notes)


def known_name(name: str) -> str | None:
    """Return the name of a published model of the same sizes, without -Instruct; or None."""
    same = {_sizes(each): each for each in CONFIGS}
    return name if name in CONFIGS else same.get(_sizes(name))


def _sizes(name: str) -> str:
    """Return the part of a name that tells the sizes of a model."""
    return _TUNED.sub("", name[:200].lower().replace("meta-llama-", "llama-"))
