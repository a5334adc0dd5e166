"""Sizes of a small GPT and a small Llama, and their scenarios with any software stack."""

from typing import Any

from simtrain.scenario import Scenario
from tests.helpers.toys import scenario_with

S, B, H, HEADS, FFN, VOCAB = 32, 2, 64, 4, 96, 256
ROWS = S * B
N = ROWS * H
LLAMA = {
    "num_layers": 2,
    "hidden_size": H,
    "num_attention_heads": HEADS,
    "num_query_groups": 2,
    "ffn_hidden_size": FFN,
    "seq_length": S,
    "vocab_size": VOCAB,
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "biases": False,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}
GPT = {name: LLAMA[name] for name in [*LLAMA][:7] if name != "num_query_groups"}


def scenario(model: dict[str, Any], software: str | dict[str, Any], **sections: Any) -> Scenario:
    batch = {"micro": B, "global": B}
    return scenario_with(model, **({"batch": batch, "software": software} | sections))
