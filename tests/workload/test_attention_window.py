"""Sliding-window attention, with scores counted one by one."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.iteration.report.result import Result
from simtrain.scenario.model import Experts
from simtrain.studies.simulation import simulate
from simtrain.workload.gpt import TransformerLayer, gpt_blocks
from simtrain.workload.work import FusedAttention
from tests.helpers.toys import small


@given(st.integers(1, 12), st.integers(1, 14), st.integers(1, 4), st.integers(1, 4))
def test_flops_of_a_window_count_the_scores_in_its_band(
    s: int, window: int, size: int, value: int
) -> None:
    """Scores on both edges of the band count half: the diagonal, and `window` tokens before it."""
    distances = [query - key for query, key in product(range(s), repeat=2)]
    scores = sum(
        0.5 if distance in (0, window) else 1 for distance in distances if 0 <= distance <= window
    )
    forward, backward = (
        FusedAttention(3, s, size, is_backward, value_size=value, window=window)
        for is_backward in (False, True)
    )
    assert forward.flops == 3 * scores * 2 * (size + value)
    assert backward.flops == 3 * scores * 2 * (3 * size + 2 * value)
    assert (forward.model_flops, backward.model_flops) == (
        3 * scores * 4 * (size + value),
        3 * scores * 8 * (size + value),
    )


@pytest.mark.parametrize(("every", "windows"), [(None, "wwwwww"), (2, "wfwfwf"), (4, "wwwfww")])
@pytest.mark.parametrize("dense", [0, 3])
def test_every_nth_layer_attends_to_all_tokens(every: int | None, windows: str, dense: int) -> None:
    """Windows count layers from 1, as Megatron-LM does. Dense first layers do not shift them."""
    model = small().model.model_copy(
        update={"num_layers": 6, "attention_window": 128, "full_attention_every": every}
    )
    if dense:
        experts = Experts(num=4, top_k=2, ffn_hidden_size=64, first_dense_layers=dense)
        model = model.model_copy(update={"experts": experts, "biases": False})
    one = small().model_copy(update={"model": model, "attention_backend": "fused"})
    layers = [block for block in gpt_blocks(one).blocks if isinstance(block, TransformerLayer)]
    assert "".join("w" if layer.window else "f" for layer in layers) == windows
    has_experts = [layer.experts is not None for layer in layers]
    assert has_experts == [dense > 0 and number >= dense for number in range(6)]


def test_flops_and_time_of_mixed_windows_are_weighted_means() -> None:
    """Eight layers are on four stages. If every second layer is full, each stage has one layer of
    either kind, and its compute time is their mean.
    """

    def found(**model: Any) -> Result:
        size = {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "seq_length": 8192}
        return simulate(small(attention_backend="fused", model=size | model))

    whole, narrow = found(), found(attention_window=512)
    half, most = (found(attention_window=512, full_attention_every=n) for n in (2, 4))
    assert 2 * half.model_flops == whole.model_flops + narrow.model_flops
    assert 4 * most.model_flops == whole.model_flops + 3 * narrow.model_flops
    compute = [one.breakdown.compute_s for one in (whole, narrow, half)]
    assert 2 * compute[2] == pytest.approx(compute[0] + compute[1])
    assert {one.memory.fullest.peak_bytes for one in (whole, half, narrow)} == {
        whole.memory.fullest.peak_bytes
    }
