"""The terms of a layer, compared with the engine's bytes and the paper's equations."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.guests.paper.layer import (
    RECOMPUTES,
    VARIABLES,
    Formulas,
    crossing_length,
    layer_terms,
    saved_bytes,
    saved_tensors,
    sized_scenario,
    sizes_of,
)
from simtrain.guests.paper.models import BASELINE, MODELS, paper_scenario


@st.composite
def legal_sizes(draw):
    """Draw sizes that tensor parallelism divides: s, a by t, and h by a."""
    ranks = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    heads = ranks * draw(st.integers(1, 12))
    return {
        "s": 32 * draw(st.integers(1, 300)),
        "b": draw(st.integers(1, 9)),
        "h": heads * draw(st.integers(8, 200)),
        "a": heads,
        "t": ranks,
    }


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(legal_sizes(), st.booleans(), st.sampled_from(RECOMPUTES))
def test_terms_add_up_to_the_bytes_of_the_engine(sizes, sequence_parallel, recompute):
    how = {"sequence_parallel": sequence_parallel and sizes["t"] > 1, "recompute": recompute}
    scenario = sized_scenario(sizes, **how)
    terms = {term.tensor: term.num_bytes(sizes) for term in layer_terms(**how)}
    assert terms == {tensor.name: tensor.num_bytes for tensor in saved_tensors(scenario)}
    assert sum(terms.values()) == saved_bytes(scenario)
    if recompute != "full":
        assert sum(terms.values()) == Formulas.of(scenario).layer_bytes


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_coefficients_are_those_of_the_equations(sequence_parallel):
    terms = layer_terms(sequence_parallel=sequence_parallel, recompute="none")
    by_power: dict[tuple[int, ...], int] = {}
    for term in terms:
        powers = tuple(term.powers[name] for name in VARIABLES)
        by_power[powers] = by_power.get(powers, 0) + term.coefficient
    divided, core = (1, 1, 1, 0, -1), (2, 1, 0, 1, -1)
    whole = {} if sequence_parallel else {(1, 1, 1, 0, 0): 10}
    assert by_power == whole | {divided: 34 if sequence_parallel else 24, core: 5}


@pytest.mark.parametrize("model", MODELS)
def test_the_attention_core_passes_the_rest_at_34_h_over_5_a(model):
    sizes = sizes_of(paper_scenario(model, BASELINE))
    heads, hidden = sizes["a"], sizes["h"]
    terms = layer_terms(sequence_parallel=True, recompute="none")
    assert crossing_length(terms, sizes) == Fraction(34 * hidden, 5 * heads)
    # Tensor parallelism alone does not divide 10sbh, so its curve is higher.
    terms = layer_terms(sequence_parallel=False, recompute="none")
    assert crossing_length(terms, sizes) == Fraction((10 * 8 + 24) * hidden, 5 * heads)
