"""All-reduces in the NVLink switch (NVLS), whose bus bandwidth is above the link's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fit.figures import CollectiveCurveFigures
from calibrate.fit.links import fit_curves
from simtrain.hardware.algorithms import ring_bytes, switch_s
from simtrain.hardware.cluster import most_fraction
from simtrain.workload.work import CollectiveKind

NVLS_BUS_GB_PER_S = 475.0
"""About what nccl-tests prints for large all-reduces of 8 H100s by NVLS, over links of 450 GB/s."""


@pytest.mark.parametrize("bus_gb_per_s", [300.0, 449.0, NVLS_BUS_GB_PER_S, 640.0])
def test_an_all_reduce_in_the_switch_is_predicted_as_measured(bus_gb_per_s: float) -> None:
    """8 GPUs: (n + 1)/n of the array crosses each link, where a ring sends 2 (n - 1)/n."""
    sizes = [2**power for power in range(12, 34)]
    times = [(size, 20.0 + 1.75 * size / bus_gb_per_s / 1e3) for size in sizes]
    figure = CollectiveCurveFigures(num_ranks=8, times=times)
    (curve,), errors = fit_curves([figure], CollectiveKind.ALL_REDUCE, 450e9)
    assert errors.mean_abs_error < 0.01
    assert (max(curve["efficiency"]) > 1) is (bus_gb_per_s > 450)
    (ring,), _ = fit_curves([figure], CollectiveKind.ALL_GATHER, 450e9)
    assert max(ring["efficiency"]) <= 1


@given(st.integers(2, 1000), st.floats(1e3, 1e12), st.floats(1e9, 1e12))
def test_no_bus_bandwidth_is_above_what_the_switch_lets_the_link_carry(
    num_ranks: int, array_bytes: float, link: float
) -> None:
    seconds = switch_s(array_bytes, num_ranks, 0.0, link)
    bus = ring_bytes("all_reduce", array_bytes, num_ranks) / seconds
    assert bus <= most_fraction("all_reduce", num_ranks) * link * (1 + 1e-12)
