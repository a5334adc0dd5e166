"""The models that are measured, as plain data of simtrain's scenarios."""

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
    """The paper's."""
    return {
        "num_layers": num_layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "seq_length": seq_length,
    }


def llama(
    num_layers: int, hidden: int, heads: int, seq_length: int, *, groups: int, ffn: int
) -> Data:
    """Grouped queries, SwiGLU, RMS norms and rotary embedding; no biases and no dropout."""
    sizes = gpt(num_layers, hidden, heads, seq_length)
    return sizes | {"num_query_groups": groups, "ffn_hidden_size": ffn} | _LLAMA
