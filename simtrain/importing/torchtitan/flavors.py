"""The model of each flavor of torchtitan.

Source: models/*/__init__.py of pytorch/torchtitan (2025 and 2026).
"""

from __future__ import annotations

from typing import Any, NoReturn

from simtrain import models
from simtrain.errors import InputError, Location
from simtrain.importing.published_models import published_model
from simtrain.scenario import Model

_SHIPPED = {
    ("llama3", "8B"): "llama3_8b",
    ("llama3", "70B"): "llama3_70b",
    ("llama3", "405B"): "llama3_405b",
    ("qwen3", "8B"): "qwen3_8b",
    ("qwen3", "32B"): "qwen3_32b",
    ("qwen3", "30B-A3B"): "qwen3_30b_a3b",
    ("qwen3", "235B-A22B"): "qwen3_235b_a22b",
    ("deepseek_v3", "671B"): "deepseek_v3",
}
"""The scenario with the model of a name and a flavor."""

_FORMER = {
    ("llama2", "7B"): "llama2_7b",
    ("llama2", "13B"): "llama2_13b",
    ("llama2", "70B"): "llama2_70b",
}
"""Those that torchtitan had in 2024: old jobs name them, and none is written with them."""

_PUBLISHED = {
    ("llama3", "1B"): "meta-llama/Llama-3.2-1B",
    ("llama3", "3B"): "meta-llama/Llama-3.2-3B",
    ("qwen3", "0.6B"): "Qwen/Qwen3-0.6B",
    ("qwen3", "1.7B"): "Qwen/Qwen3-1.7B",
    ("qwen3", "4B"): "Qwen/Qwen3-4B",
    ("qwen3", "14B"): "Qwen/Qwen3-14B",
    ("deepseek_v3", "16B"): "deepseek-ai/DeepSeek-V2-Lite",
    ("deepseek_v3", "236B"): "deepseek-ai/DeepSeek-V2",
    ("kimi_k2_7", "moonlight-16B-A3B"): "moonshotai/Moonlight-16B-A3B",
    ("gpt_oss", "20b"): "openai/gpt-oss-20b",
    ("gpt_oss", "120b"): "openai/gpt-oss-120b",
}
"""The published model of a name and a flavor."""

_DEBUG: dict[tuple[str, str], dict[str, Any]] = {
    ("llama3", "debugmodel"): {"num_layers": 6, "num_attention_heads": 16, "ffn_hidden_size": 768},
    ("qwen3", "debugmodel"): {
        "num_layers": 8,
        "num_attention_heads": 16,
        "num_query_groups": 8,
        "kv_channels": 128,
        "ffn_hidden_size": 3072,
        "qk_norm": True,
        "tied_embeddings": True,
    },
    ("qwen3", "debugmodel_moe"): {
        "num_layers": 8,
        "num_attention_heads": 16,
        "num_query_groups": 8,
        "kv_channels": 128,
        "qk_norm": True,
        "experts": {"num": 64, "top_k": 8, "ffn_hidden_size": 768},
    },
    ("deepseek_v3", "debugmodel"): {
        "num_layers": 6,
        "num_attention_heads": 16,
        "ffn_hidden_size": 1024,
        "latent_attention": {"kv_lora_rank": 512},
        "qk_norm": True,
        "experts": {
            "num": 8,
            "top_k": 3,
            "ffn_hidden_size": 256,
            "shared_ffn_hidden_size": 512,
            "first_dense_layers": 1,
        },
    },
    ("gpt_oss", "debugmodel"): {
        "num_layers": 4,
        "num_attention_heads": 64,
        "num_query_groups": 8,
        "kv_channels": 64,
        "qkv_biases": True,
        "attention_window": 128,
        "full_attention_every": 2,
        "experts": {"num": 8, "top_k": 4, "ffn_hidden_size": 2880},
    },
}
_ALL_DEBUG: dict[str, Any] = {
    "hidden_size": 256,
    "vocab_size": 2048,
    "tied_embeddings": False,
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "biases": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
_VARIANTS = ("_flex_attn", "_varlen_attn", "_non_fused_qkv", "_fused_qkv", "_flex", "_varlen")
"""Endings of flavors that have other kernels and the same sizes."""

NAMES = tuple(dict.fromkeys(name for name, _ in (*_SHIPPED, *_PUBLISHED, *_FORMER)))
"""The names of models that have flavors here."""
FLAVORS = ", ".join(" ".join(pair) for pair in (*_SHIPPED, *_PUBLISHED, *_FORMER))
"""All names and flavors, for errors."""
MISSING = {
    "qwen3_5": "linear attention (Gated DeltaNet) in most layers",
    "flux": "diffusion models of images",
    "kimi_k2_7": "vision encoder",
    "muse_glimmer": "attention with an output gate, and norms of its own",
}
"""The part that is missing, for models without any flavor here, or with some."""
_NOT_OF_TORCHTITAN = ("seq_length", "mtp_num_layers")
"""Fields of published models that other keys of a job set."""


def refuse_flavor(name: str, flavor: str, place: Location | None) -> NoReturn:
    """Raise the error about a flavor that is not here (E877)."""
    raise InputError.of(
        "E877",
        f"the flavor {flavor} of {name} cannot be imported"
        + (f": simtrain has no {MISSING[name]}" if name in MISSING else ""),
        place,
        f"write one of {FLAVORS}; or import the model from its config.json with simtrain import hf",
        "simtrain has the sizes of some flavors only",
    )


def model_of_flavor(name: str, flavor: str) -> tuple[dict[str, Any], str, tuple[str, ...]] | None:
    """Return the fields of a model, where they come from, and notes; None if it is not here.

    Args:
        name: the model, such as "llama3".
        flavor: its size, such as "8B".
    """
    for variant in _VARIANTS:
        flavor = flavor.removesuffix(variant)
    fields, notes, source = dict[str, Any](), tuple[str, ...](), ""
    if shipped := (_SHIPPED | _FORMER).get((name, flavor)):
        fields, source = getattr(models, shipped).model_dump(exclude_unset=True), shipped
    elif published := _PUBLISHED.get((name, flavor)):
        model = published_model(published)
        fields, source, notes = model.fields, published, model.notes
    elif (name, flavor) in _DEBUG:
        fields, source = _ALL_DEBUG | _DEBUG[name, flavor], "torchtitan's models for tests"
    else:
        return None
    kept = {field: value for field, value in fields.items() if field not in _NOT_OF_TORCHTITAN}
    return kept, source, notes


def flavor_of_model(model: Model) -> tuple[str, str] | None:
    """Return the name and flavor of a model with any sequence length; None if there is none."""
    for pair in (*_SHIPPED, *_PUBLISHED, *_DEBUG):
        fields, _, _ = model_of_flavor(*pair) or ({}, "", ())
        others = {field: getattr(model, field) for field in _NOT_OF_TORCHTITAN}
        if Model.model_validate(fields | others) == model:
            return pair
    return None
