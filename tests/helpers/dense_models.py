"""Any legal dense model, for tests that count its layers by hand."""

from typing import Any

from hypothesis import strategies as st

from simtrain.scenario import Scenario
from tests.helpers.toys import scenario_with


@st.composite
def dense(draw: st.DrawFn) -> Scenario:
    """Draw one layer of any legal dense model on any number of ranks."""
    t = draw(st.sampled_from([1, 2, 4]))
    groups = t * draw(st.integers(1, 3))
    heads = groups * draw(st.integers(1, 4))
    sequence = t > 1 and draw(st.booleans())
    model: dict[str, Any] = {
        "num_layers": 1,
        "hidden_size": t * draw(st.integers(1, 100)),
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "kv_channels": 8 * draw(st.integers(1, 32)),
        "ffn_hidden_size": t * draw(st.integers(1, 100)),
        "seq_length": t * draw(st.integers(1, 50)),
        "vocab_size": 128 * t,
    }
    for field, values in CHOICES.items():
        if draw(st.booleans()):
            model[field] = draw(st.sampled_from(values))
    return scenario_with(
        model,
        batch={"micro": draw(st.integers(1, 3)), "global": 6},
        parallelism={"tensor": t, "sequence_parallel": sequence},
        attention_backend=draw(st.sampled_from(["fused", "unfused"])),
    )


CHOICES: dict[str, list[Any]] = {
    "activation": ["gelu", "swiglu", "geglu", "squared_relu"],
    "normalization": ["layer_norm", "rms_norm"],
    "qk_norm": [False, True],
    "position_embedding": ["learned", "rope", "none"],
    "biases": [False, True],
    "qkv_biases": [False, True],
    "hidden_dropout": [0, 0.0, 0.1, 0.5],
    "attention_dropout": [0, 0.2],
    "tied_embeddings": [False, True],
    "parallel_attention_mlp": ["none", "one_norm", "two_norms"],
}
