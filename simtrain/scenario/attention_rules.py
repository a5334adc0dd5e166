"""Rules of attention: settings that Megatron-LM and the kernels refuse, and legal alternatives.

Sources: FlashAttention-2 and cuDNN for head sizes; Megatron-LM's arguments.py,
transformer/multi_latent_attention.py and transformer/dot_product_attention.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from simtrain.scenario.allowed_values import SET
from simtrain.scenario.at_most import AtMost
from simtrain.scenario.nearest import near_divisors, near_multiples
from simtrain.scenario.requirement import Requires
from simtrain.scenario.schema import Scenario
from simtrain.scenario.stage_rules import are
from simtrain.scenario.violation import (
    LEFT_OUT,
    Rule,
    Violation,
    registering,
    rule_against,
)

ATTENTION_RULES: list[Rule] = [
    Requires(
        "E340",
        "model.attention_window",
        needs={"attention_backend": "fused"},
        needs_first=True,
        why=(
            "unfused attention computes the scores of all pairs of tokens, and Megatron-LM's "
            "fused softmax does not support a window (fused_softmax.py)"
        ),
        example="model: {attention_window: 512}",
    ),
    Requires(
        "E336",
        "model.full_attention_every",
        needs={"model.attention_window": SET},
        why="without model.attention_window, every layer attends to all tokens",
        example="model: {full_attention_every: 2}",
    ),
    AtMost(
        "E337",
        "model.full_attention_every",
        "model.num_layers",
        lambda scenario: scenario.model.num_layers,
        why="at least one layer must attend to all tokens; otherwise the setting has no effect",
        near={
            "model.full_attention_every": lambda scenario: [
                max(2, scenario.model.num_layers),
                None,
            ],
            "model.num_layers": [],
        },
        example=(
            "model: {attention_window: 512, full_attention_every: 1000}\nattention_backend: fused"
        ),
    ),
    rule_against(
        "E342",
        "latent attention computes separate keys and values for every head (Megatron-LM's "
        "arguments.py)",
        {
            "model.num_query_groups": lambda scenario: [scenario.model.num_attention_heads],
            "model.latent_attention": [None],
        },
        lambda scenario: (
            scenario.model.latent_attention
            and scenario.model.num_query_groups != scenario.model.num_attention_heads
        ),
        what="Latent attention is combined with query groups.",
        fix="Remove model.num_query_groups.",
        example=(
            "model: {latent_attention: {kv_lora_rank: 512}, num_query_groups: 8}\n"
            "attention_backend: fused"
        ),
    ),
]
_rule = registering(ATTENTION_RULES)

_MOST_CHANNELS, _CHANNELS_STEP = 256, 8


@_rule(
    "E330",
    "fused kernels support heads of 8, 16, ... 256 channels (FlashAttention-2, cuDNN)",
    what="Fused attention kernels do not support this head size.",
    fix="Change the number of heads or their channels, or set attention_backend to unfused.",
    example=("model: {num_attention_heads: 16}\nattention_backend: fused"),
)
def _fused_heads(scenario: Scenario) -> Violation | None:
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
        values = {"model.kv_channels": _near_channels(channels)}
        return Violation(message, {"attention_backend": ["unfused"], **values})
    return Violation(
        f"{message} (model.hidden_size {hidden} / model.num_attention_heads {heads})",
        {
            "attention_backend": ["unfused"],
            "model.num_attention_heads": near_divisors(heads, hidden),
            "model.hidden_size": [],
        },
    )


def _latent_heads(scenario: Scenario) -> Violation | None:
    latent, section = scenario.model.latent_attention, "model.latent_attention"
    if latent is None or (_is_supported(latent.query_size) and _is_supported(latent.v_head_dim)):
        return None
    rotated = latent.qk_pos_emb_head_dim
    of_query = (near - rotated for near in _near_channels(latent.query_size))
    values: Mapping[str, list[int]] = {
        f"{section}.qk_head_dim": [size for size in of_query if size > 0],
        f"{section}.v_head_dim": _near_channels(latent.v_head_dim),
    }
    return Violation(
        f"attention_backend is fused, but query and key heads have {latent.query_size} channels "
        f"({section}.qk_head_dim + qk_pos_emb_head_dim) and value heads {latent.v_head_dim}",
        values,
    )


def _is_supported(channels: int) -> bool:
    return channels <= _MOST_CHANNELS and channels % _CHANNELS_STEP == 0


def _near_channels(channels: int) -> list[int]:
    near = [*near_multiples(min(channels, _MOST_CHANNELS), _CHANNELS_STEP)]
    return [_MOST_CHANNELS, *near] if channels > _MOST_CHANNELS else near


@_rule(
    "E343",
    "latent attention adds no biases to queries, keys and values, and takes its head sizes from "
    "model.latent_attention",
    what="Fields of plain attention are set together with latent attention.",
    fix="Remove model.kv_channels and model.qkv_biases.",
    example=(
        "model: {latent_attention: {kv_lora_rank: 512}, kv_channels: 128}\nattention_backend: fused"
    ),
)
def _latent_attention_reads(scenario: Scenario) -> Violation | None:
    model = scenario.model
    names = [
        f"model.{name}"
        for name in ("kv_channels", "qkv_biases")
        if name in model.model_fields_set and getattr(model, name)
    ]
    if model.latent_attention is None or not names:
        return None
    return Violation(
        f"{are(names)} set together with model.latent_attention, which ignores "
        f"{'it' if len(names) == 1 else 'them'}",
        {
            "model.kv_channels": [LEFT_OUT],
            "model.qkv_biases": [False],
            "model.latent_attention": [None],
        },
        (*names, "model.latent_attention"),
    )
