"""Memory of layers and GPTs, counted in torch and compared with the simulation."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from calibrate.memory.cases import HeldBytes, MemoryCase, MemoryComparison, MemoryRow, case
from calibrate.memory.measure import LiveTensors, compare, measure
from calibrate.torch_model.shape import LayerShape
from simtrain.workload.recompute import recompute_units
from tests.render.test_terminal import drawn

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
POLICIES = st.one_of(
    st.sampled_from(["none", "selective"]),
    st.fixed_dictionaries(
        {
            "strategy": st.just("full"),
            "method": st.sampled_from(["uniform", "block"]),
            "num_layers": st.integers(1, 4),
        }
    ),
)


@st.composite
def cases(draw: st.DrawFn) -> MemoryCase:
    """Draw up to four layers, alone or in a GPT."""
    heads, whole = draw(st.integers(1, 4)), draw(st.booleans())
    model = {
        "num_layers": (num_layers := draw(st.integers(1, 4))),
        "hidden_size": heads * 8 * draw(st.integers(1, 8)),
        "num_attention_heads": heads,
        "seq_length": 8 * draw(st.integers(1, 32)),
        "vocab_size": 8 * draw(st.integers(1, 200)),
        "tied_embeddings": draw(st.booleans()),
    }
    recompute = draw(POLICIES)
    if isinstance(recompute, dict):
        recompute["num_layers"] = min(recompute["num_layers"], num_layers)
    return case(model, recompute, micro=draw(st.integers(1, 4)), whole=whole)


def small(recompute: Any = "none", *, whole: bool = True) -> MemoryCase:
    model = {
        "num_layers": 2,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "seq_length": 512,
        "vocab_size": 8192,
    }
    return case(model, recompute, micro=2, whole=whole)


def ignored_bytes(what: MemoryCase, num_norms: int) -> int:
    """Return the bytes that the paper ignores: mean and deviation of layer norms, in fp32 per
    token.

    A GPT has one more norm, and also keeps its tokens and labels, its loss and the divisor of the
    loss.
    """
    tokens = LayerShape.of(what.scenario).tokens
    if not what.whole:
        return 8 * tokens * num_norms + 2
    return 8 * tokens * (num_norms + 1) + 16 * tokens + 4


# ---------------------------------------------------------------------------------- counting


def test_storages_count_as_long_as_a_tensor_refers_to_them() -> None:
    with LiveTensors() as memory:
        a = torch.zeros(1000)
        b = a + 1
        view = a.view(10, 100)[3]
        b.mul_(2)
        assert memory.held_bytes == 8000
        del a
        assert memory.held_bytes == 8000
        del view
        assert memory.held_bytes == 4000
        assert memory.peak_bytes == 8000
        memory.reset_peak()
        assert memory.peak_bytes == 4000
        c = torch.cat([b, b])
        assert memory.peak_bytes == 12000
        del b, c
        assert memory.held_bytes == 0


# -------------------------------------------------------------------- measured and simulated


@settings(max_examples=2)
@given(cases())
def test_random_small_cases_agree_except_for_ignored_bytes(what: MemoryCase) -> None:
    """States and kept bytes agree exactly, the peak except for layer norms, masks and small
    remainders.
    """
    measured, _ = measure(what, "meta")
    simulated, model = what.simulated(), what.scenario.model
    assert measured.states == simulated.states
    kept_units = recompute_units(what.scenario.recompute, model.num_layers)
    norms_kept = sum(2 * unit.num_layers for unit in kept_units if not unit.recomputes)
    assert measured.kept == simulated.kept + ignored_bytes(what, norms_kept)
    masks = 2 * model.seq_length**2
    loose_ends = 32 * LayerShape.of(what.scenario).tokens + 64 * model.hidden_size
    allowed = ignored_bytes(what, 2 * model.num_layers) + masks + loose_ends
    assert 0 <= measured.peak - simulated.peak <= allowed


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "recompute",
    [
        "none",
        "selective",
        "full",
        {"strategy": "full", "num_layers": 2},
        {"strategy": "full", "method": "block", "num_layers": 1},
    ],
    ids=str,
)
def test_simulated_peaks_agree_with_torch(recompute: Any, whole: bool) -> None:
    """They differ by ignored bytes, a causal mask, and the gradients of biases and layer norms."""
    (row,) = compare([small(recompute, whole=whole)], "meta").rows
    assert abs(row.passing_error) < 0.005


# ------------------------------------------------------------------------------ command line


def test_the_larger_error_is_compared_with_the_threshold(snapshot: SnapshotAssertion) -> None:
    """Large model states can hide an error in temporary tensors."""
    measured, simulated = HeldBytes(1000, 10, 1100), HeldBytes(1000, 10, 1105)
    row = MemoryRow("a", "none", measured, simulated, 3 << 30)
    assert row.peak_error == pytest.approx(5 / 1100)
    comparison = MemoryComparison("by hand", [row])
    assert comparison.errors == [row.passing_error] == pytest.approx([0.05])
    assert not comparison.ok
    assert drawn(comparison.view(), 100) == snapshot
