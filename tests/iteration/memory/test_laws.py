"""Laws of memory for any model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.base.resources import list_scenarios
from simtrain.iteration.memory.report import peak_bytes
from simtrain.iteration.memory.working import pass_memory
from simtrain.scenario.check import load_scenario
from simtrain.studies.simulation import simulate_memory
from tests.helpers.toys import a100, plan_of, small

LENGTHS = st.integers(1, 64).map(lambda number: 512 * number)


@given(recompute=st.sampled_from(["none", "selective", "full"]), seq_length=LENGTHS)
@settings(max_examples=25)
def test_a_fused_peak_grows_at_most_linearly_with_the_sequence(
    recompute: str, seq_length: int
) -> None:
    """No array has s × s elements: no scores, no mask, no buffer."""

    def passing_bytes(length: int) -> int:
        scenario = small(
            model={"seq_length": length}, attention_backend="fused", recompute=recompute
        )
        fullest = simulate_memory(scenario).fullest
        return fullest.peak_bytes - fullest.states.total_bytes - fullest.allocator_bytes

    assert passing_bytes(seq_length) * 512 <= passing_bytes(512) * seq_length


def test_an_unfused_layer_needs_memory_for_scores_and_their_product() -> None:
    """8 heads have 4 · 2048² scores of 2 bytes; baddbmm's addend is in the global buffer."""
    buffers = simulate_memory(small()).fullest.buffers_bytes
    assert buffers["global memory buffer"] == 2 * 8 * 2048**2


def test_a_peak_that_64_bits_cannot_hold_is_exact() -> None:
    """Eight layers keep 5 bytes for each of 8 s² scores (Korthikanti et al., Section 4.1). All
    other tensors are linear in s and cancel in A(s) - 2 A(s/2).
    """
    whole, half = (
        small({"pipeline": 1}, model={"seq_length": length}) for length in (2**30, 2**29)
    )
    peak, of_half = (simulate_memory(one).fullest.activations_bytes for one in (whole, half))
    assert peak > 2**63
    assert peak - 2 * of_half == 8 * 5 * 8 * (2**60 - 2 * 2**58)
    assert peak_bytes(plan_of(whole), a100()) == simulate_memory(whole).fullest.peak_bytes


@pytest.mark.slow
def test_backward_passes_of_shipped_scenarios_free_all_saved_bytes() -> None:
    """A backward op reads each saved tensor, so each is freed."""
    left = {
        (name, *key): pass_memory(one).remaining_bytes
        for name in list_scenarios()
        for key, one in plan_of(load_scenario(name)).passes.items()
        if key.kind == "B"
    }
    assert len(left) > 60
    assert not any(left.values()), {key: size for key, size in left.items() if size}
