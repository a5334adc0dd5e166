"""Frozen weights in fp8: bytes on each machine, and casts, counted by hand."""

from typing import Any

import pytest

from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate_memory
from tests.helpers.toys import plan_of, scenario_with

H, FFN, VOCAB, LAYERS, RANK = 256, 768, 512, 3, 8
MODEL: dict[str, Any] = {
    "num_layers": LAYERS,
    "hidden_size": H,
    "num_attention_heads": 4,
    "ffn_hidden_size": FFN,
    "seq_length": 128,
    "vocab_size": VOCAB,
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "tied_embeddings": False,
    "biases": False,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}
SIZES = [(H, 3 * H), (H, H), (H, 2 * FFN), (FFN, H)]
"""Inputs and outputs of the linear layers of a layer."""
WEIGHTS = sum(a * b for a, b in SIZES)
ADAPTERS = RANK * sum(a + b for a, b in SIZES)
COPY = {
    "delayed": lambda number: number,
    "tensorwise": lambda number: number,
    "blockwise": lambda number: number + 4 * (number // 128**2),
    "mxfp8": lambda number: number + number // 32,
}
"""Bytes of one copy of weights with its scales."""
MICROBATCHES = 2


def tuned(recipe: str, cluster: str, keeps: bool | None, **sections: Any) -> Scenario:
    """Return a Llama of three layers whose linear layers all have adapters."""
    precision = {"compute": "fp8", "fp8_recipe": recipe}
    if keeps is not None:
        precision["fp8_parameters"] = keeps
    return scenario_with(
        MODEL | {"lora": {"rank": RANK}},
        attention_backend="fused",
        precision=precision,
        cluster=cluster,
        **{"software": "megatron_core", "batch": {"micro": 1, "global": MICROBATCHES}} | sections,
    )


def held(scenario: Scenario) -> tuple[int, int]:
    """Return the bytes of the weights on the first stage, and of their fp8 copies."""
    stage = simulate_memory(scenario).stages[0]
    return stage.states.parameters_bytes, stage.buffers_bytes.get("fp8 copies of weights", 0)


@pytest.mark.parametrize(
    ("recipe", "cluster", "copies"),
    [
        ("delayed", "h100_sxm", 2),
        ("tensorwise", "h200_sxm", 2),
        ("blockwise", "h100_sxm", 2),
        ("delayed", "b200_sxm", 1),
        ("tensorwise", "gb300", 1),
        ("blockwise", "gb200", 2),
        ("mxfp8", "b200_sxm", 2),
    ],
)
@pytest.mark.parametrize("t", [1, 2])
def test_bytes_of_frozen_weights_by_hand(recipe: str, cluster: str, copies: int, t: int) -> None:
    """Hopper multiplies fp8 along one dimension, so it needs a transpose. Blackwell needs none
    with one scale per tensor; scales of blocks belong to rows or to columns.
    """
    split = {"parallelism": {"tensor": t}}
    scenario = tuned(recipe, cluster, keeps=True, **split)
    rest = LAYERS * (2 * H + ADAPTERS // t) + 2 * VOCAB * H // t + H
    of_fp8 = COPY[recipe](LAYERS * WEIGHTS // t)
    assert held(scenario) == (2 * rest + of_fp8, (copies - 1) * of_fp8)
    bf16 = tuned(recipe, cluster, keeps=False, **split)
    assert held(bf16) == (2 * (rest + LAYERS * WEIGHTS // t), copies * of_fp8)
    assert ["weight_cast" in plan_of(each).steps[0] for each in (scenario, bf16)] == [False, True]
