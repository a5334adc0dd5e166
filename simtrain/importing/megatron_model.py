"""Import Megatron-LM's arguments of latent attention, windows and multi-token prediction."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simtrain.importing.expert_layers import full_attention_every
from simtrain.importing.megatron_values import listed, wrong

if TYPE_CHECKING:
    from simtrain.importing.megatron import _Mapping
    from simtrain.importing.source import Argument

# Megatron-LM's defaults (arguments.py).
_LATENT_SIZES = {
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
}


def set_attention(mapping: _Mapping) -> bool:
    """Set latent attention, windows and modules of multi-token prediction.

    Returns whether attention is latent, and thus has no QKV biases and no kv_channels.
    """
    _set_window(mapping)
    if modules := mapping.integer("mtp_num_layers"):
        mapping.set("model.mtp_num_layers", modules, "mtp_num_layers")
    return _set_latent_attention(mapping)


def _set_latent_attention(mapping: _Mapping) -> bool:
    if not mapping.flag("multi_latent_attention"):
        return False
    for name, default in _LATENT_SIZES.items():
        size = mapping.integer(name) or default
        if size is not None:
            names = (name,) if mapping.given(name) else ("multi_latent_attention",)
            mapping.set(f"model.latent_attention.{name}", size, *names)
    return True


def _set_window(mapping: _Mapping) -> None:
    """Set the attention window: the tokens before a query, plus the query; -1 means no window."""
    argument = mapping.known("window_size")
    if argument is None:
        return
    sizes = re.fullmatch(r"\(?\s*(-1|\d+)\s*,\s*(-1|\d+)\s*\)?", argument.value)
    if sizes is None or sizes[2] not in ("0", "-1"):
        raise wrong(
            argument, "must be of the form 127,0: the tokens before a query, and 0 after it"
        )
    if sizes[1] == "-1":
        return
    every = mapping.known("window_attn_skip_freq")
    if every and (found := _full_attention_every(mapping, every)) == 1:
        return
    mapping.set("model.attention_window", int(sizes[1]) + 1, "window_size")
    if every and found:
        mapping.set("model.full_attention_every", found, "window_attn_skip_freq")


def _full_attention_every(mapping: _Mapping, argument: Argument) -> int | None:
    """Return n if every nth layer has no window; None if all layers have one."""
    layers = mapping.layers or 0
    if argument.value.isdecimal() and int(argument.value) > 0:
        number = int(argument.value)
        return number if number <= layers else None
    pattern = [one == "1" for one in listed(argument)]
    if len(pattern) != layers or not {*listed(argument)} <= {"0", "1"}:
        raise wrong(argument, f"must be a number, or 0 or 1 for each of the {layers} layers")
    if all(pattern) or not any(pattern):
        return None if all(pattern) else 1
    if found := full_attention_every(pattern):
        return found
    raise wrong(argument, "must skip every nth layer; other patterns are not modelled")
