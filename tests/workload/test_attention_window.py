"""Sliding-window attention, with scores counted one by one."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.durations.model import DurationModel
from simtrain.errors import InputError
from simtrain.iteration.report.result import Result
from simtrain.scenario import check_scenario, load_scenario
from simtrain.scenario.model import Experts
from simtrain.studies.simulation import simulate
from simtrain.workload.gpt import TransformerLayer, gpt_blocks
from simtrain.workload.work import FusedAttention
from tests.helpers.scenario_texts import MINIMAL, edited
from tests.helpers.toys import a100, small


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


@given(st.integers(1, 4096), st.integers(1, 5000), st.booleans())
def test_a_narrower_window_never_has_more_flops(s: int, window: int, is_backward: bool) -> None:
    """A window as long as the sequence has no effect."""
    seconds_of = DurationModel(a100()).seconds
    narrow, wide, none = (
        FusedAttention(64, s, 128, is_backward, window=each) for each in (window, window + 1, None)
    )
    assert narrow.flops <= wide.flops <= none.flops
    if window >= s:
        assert seconds_of(narrow) == seconds_of(none)


def test_a_window_changes_time_and_flops_but_not_memory() -> None:
    whole, narrow = (
        simulate(small(attention_backend="fused", model={"attention_window": window}))
        for window in (None, 256)
    )
    assert narrow.iteration_time_s < whole.iteration_time_s
    assert narrow.memory.fullest.peak_bytes == whole.memory.fullest.peak_bytes
    # The window masks (7/8)² of s² scores, in 2 products forward and 4 backward, with 2 FLOPs per
    # score and channel, in 8 layers of 8 microbatches.
    assert whole.model_flops - narrow.model_flops == 6 * 2 * 2048**2 * 4096 * 64 * 49 // 64
    assert "fused attention" in narrow.extrapolated


def test_a_window_needs_fused_attention(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(edited("  num_layers", "  attention_window: 512\n  num_layers"), "utf-8")
    assert MINIMAL.count("num_layers") == 1
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    assert "x.yaml:2:21: E340 " in str(caught.value)


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


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ({"full_attention_every": 2}, "E336"),
        ({"full_attention_every": 9, "attention_window": 64}, "E337"),
    ],
)
def test_full_attention_every_without_effect_is_refused(model: dict[str, Any], code: str) -> None:
    one = small(attention_backend="fused")
    changes = {f"model.{name}": value for name, value in model.items()}
    with pytest.raises(InputError, match=code):
        check_scenario(one.replace(changes))
