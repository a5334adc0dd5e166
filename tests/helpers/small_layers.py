"""Sizes of a small GPT and a small Llama, and their scenarios with any software stack."""

from typing import Any

from simtrain.scenario import Scenario
from tests.helpers.toys import scenario_with

S, B, H, HEADS, FFN, VOCAB = 32, 2, 64, 4, 96, 256
ROWS = S * B
N = ROWS * H
_KINDS = {
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "biases": False,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}
LLAMA = {
    "num_layers": 2,
    "hidden_size": H,
    "num_attention_heads": HEADS,
    "num_query_groups": 2,
    "ffn_hidden_size": FFN,
    "seq_length": S,
    "vocab_size": VOCAB,
    **_KINDS,
}
GPT = {name: LLAMA[name] for name in [*LLAMA][:7] if name != "num_query_groups"}
# Two layers of 8 heads of 32 channels in 2 groups, with sequences of 128 tokens.
WIDER_LLAMA = {
    "num_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_query_groups": 2,
    "ffn_hidden_size": 704,
    "seq_length": 128,
    **_KINDS,
}


def scenario(model: dict[str, Any], software: str | dict[str, Any], **sections: Any) -> Scenario:
    batch = {"micro": B, "global": B}
    return scenario_with(model, **({"batch": batch, "software": software} | sections))
