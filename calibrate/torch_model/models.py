"""The measured models, as plain data of scenarios."""

from __future__ import annotations

from typing import Any

Data = dict[str, Any]

_LLAMA: Data = {
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "biases": False,
    "hidden_dropout": 0,
    "attention_dropout": 0,
    "tied_embeddings": False,
}


def gpt(num_layers: int, hidden: int, heads: int, seq_length: int) -> Data:
    """A GPT of the paper."""
    return {
        "num_layers": num_layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "seq_length": seq_length,
    }


def llama(
    num_layers: int,
    hidden: int,
    heads: int,
    seq_length: int,
    *,
    groups: int,
    ffn: int,
    experts: int = 0,
) -> Data:
    """A model with grouped queries, SwiGLU, RMS norms, rotary embedding; no biases, no dropout.

    Each layer has an MLP of `ffn` channels, or `experts` of them, two for each token.
    """
    sizes = gpt(num_layers, hidden, heads, seq_length)
    mlp: Data = {"ffn_hidden_size": ffn}
    if experts:
        mlp = {"experts": mlp | {"num": experts, "top_k": 2}}
    return sizes | {"num_query_groups": groups} | mlp | _LLAMA


def expert_split(model: Data, tensor: int) -> Data:
    """The split of a layer's experts, if it has any, over its tensor-parallel ranks."""
    return {"expert": tensor, "expert_tensor": 1} if "experts" in model and tensor > 1 else {}
