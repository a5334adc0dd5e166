"""Rules of attention: settings that Megatron-LM and the kernels refuse, and legal alternatives.

Sources: FlashAttention-2 and cuDNN for head sizes; Megatron-LM's arguments.py,
transformer/multi_latent_attention.py and transformer/dot_product_attention.py.
"""

from __future__ import annotations

from simtrain.scenario.rule import Rules, against, are, at_most, is_set, requires
from simtrain.scenario.schema import Scenario

ATTENTION_RULES = Rules()
ATTENTION_RULES += [
    requires(
        "E340",
        "model.attention_window",
        needs={"attention_backend": "fused"},
        why="unfused attention computes the scores of all pairs of tokens, and Megatron-LM's "
        "fused softmax does not support a window (fused_softmax.py)",
        example="model: {attention_window: 512}",
        first=("attention_backend",),
    ),
    requires(
        "E336",
        "model.full_attention_every",
        needs={"model.attention_window": is_set},
        why="without model.attention_window, every layer attends to all tokens",
        example="model: {full_attention_every: 2}",
    ),
    at_most(
        "E337",
        "model.full_attention_every",
        "model.num_layers",
        lambda scenario: scenario.model.num_layers,
        why="at least one layer must attend to all tokens; otherwise the setting has no effect",
        example="model: {attention_window: 512, full_attention_every: 1000}\nattention_backend: "
        "fused",
    ),
    against(
        "E342",
        lambda scenario: (
            scenario.model.latent_attention
            and scenario.model.num_query_groups != scenario.model.num_attention_heads
        ),
        "model.num_query_groups is {scenario.model.num_query_groups} while "
        "model.latent_attention is set",
        why="latent attention computes separate keys and values for every head (Megatron-LM's "
        "arguments.py)",
        example="model: {latent_attention: {kv_lora_rank: 512}, num_query_groups: 8}\n"
        "attention_backend: fused",
    ),
]
rule = ATTENTION_RULES.rule

_MOST_CHANNELS, _CHANNELS_STEP = 256, 8


@rule(
    "E330",
    "fused kernels support heads of 8, 16, ... 256 channels (FlashAttention-2, cuDNN)",
    "model: {num_attention_heads: 16}\nattention_backend: fused",
)
def _fused_heads(scenario: Scenario) -> str | None:
    model = scenario.model
    if scenario.attention_backend != "fused":
        return None
    if model.latent_attention:
        return _latent_heads(scenario)
    hidden, heads, channels = model.hidden_size, model.num_attention_heads, model.kv_channels
    has_channels = "kv_channels" in model.model_fields_set
    if _is_supported(channels) or not (has_channels or hidden % heads == 0):
        return None
    message = f"attention_backend is fused, but heads have {channels} channels"
    if has_channels:
        return message
    return f"{message} (model.hidden_size {hidden} / model.num_attention_heads {heads})"


def _latent_heads(scenario: Scenario) -> str | None:
    latent, section = scenario.model.latent_attention, "model.latent_attention"
    if latent is None or (_is_supported(latent.query_size) and _is_supported(latent.v_head_dim)):
        return None
    return (
        f"attention_backend is fused, but query and key heads have {latent.query_size} channels "
        f"({section}.qk_head_dim + qk_pos_emb_head_dim) and value heads {latent.v_head_dim}"
    )


def _is_supported(channels: int) -> bool:
    return channels <= _MOST_CHANNELS and channels % _CHANNELS_STEP == 0


@rule(
    "E343",
    "latent attention adds no biases to queries, keys and values, and takes its head sizes from "
    "model.latent_attention",
    "model: {latent_attention: {kv_lora_rank: 512}, kv_channels: 128}\nattention_backend: fused",
)
def _latent_attention_reads(scenario: Scenario) -> str | None:
    model = scenario.model
    names = [
        f"model.{name}"
        for name in ("kv_channels", "qkv_biases")
        if name in model.model_fields_set and getattr(model, name)
    ]
    if model.latent_attention is None or not names:
        return None
    return (
        f"{are(names)} set together with model.latent_attention, which ignores "
        f"{'it' if len(names) == 1 else 'them'}"
    )
