"""The recompute tax, compared with the paper's tables and figures."""

import pytest

from simtrain.guests.paper.layer import RECOMPUTES, recompute_tax
from simtrain.guests.paper.targets import table4


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
