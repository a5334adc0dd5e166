"""The recompute tax and the use of freed memory, compared with the paper's tables and figures."""

import pytest

from simtrain.paper.larger_batch import freed_memory
from simtrain.paper.layer_terms import RECOMPUTES
from simtrain.paper.models import PRESENT, paper_scenario
from simtrain.paper.recompute_tax import recompute_tax
from simtrain.paper.times import table4
from simtrain.studies.simulation import simulate


@pytest.fixture(scope="module")
def tax():
    return recompute_tax(["22B"], [2048, 8192])


def test_the_tax_is_that_of_table_4(tax):
    rows = iter(table4().rows)
    cases = ((False, "none"), (True, "none"), (False, "full"), (False, "selective"))
    for sequence_parallel, recompute in (*cases, (True, "selective")):
        layer = tax["22B", sequence_parallel, recompute, 2048]
        assert layer.forward_s == next(rows).simulated
        backward_s = layer.backward_s + layer.recompute_s
        assert backward_s == pytest.approx(next(rows).simulated, rel=1e-12)


def test_selective_recompute_runs_the_core_again_and_full_the_forward_pass(tax):
    for length in (2048, 8192):
        # The core has 4s/h of the 24 + 4s/h sbh² FLOPs of a forward pass (Appendix A).
        core = 4 * length / 6144 / (24 + 4 * length / 6144)
        for sequence_parallel in (False, True):
            layers = {name: tax["22B", sequence_parallel, name, length] for name in RECOMPUTES}
            shares = {name: one.recompute_flops / one.forward_flops for name, one in layers.items()}
            assert 0 < layers["full"].num_extrapolated < layers["full"].num_ops
            assert shares == {"none": 0, "selective": pytest.approx(core), "full": 1}


@pytest.mark.slow
def test_only_choices_that_fit_are_simulated_and_larger_ones_need_more():
    (freed,) = freed_memory(["22B"], [1, 4]).values()
    for choice in (*freed.microbatches, *freed.pipelines):
        fits = choice.peak_bytes <= freed.capacity_bytes
        assert fits == (choice.mfu is not None) == (choice.iteration_time_s is not None)
    one, four = freed.microbatches[::2], freed.microbatches[1::2]
    for small, large in zip(one, four, strict=True):
        assert small.strategy == large.strategy
        assert small.peak_bytes < large.peak_bytes
    present = next(c for c in freed.microbatches if (c.strategy, c.microbatch) == (PRESENT, 4))
    assert present.iteration_time_s == simulate(paper_scenario("22B", PRESENT)).iteration_time_s
