"""Laws between shipped profiles of related machines, and NVLink domains of 72 GPUs."""

import itertools

import pytest

from simtrain.hardware.load import load_profile
from simtrain.scenario.parallelism import Parallelism

RACKS = ("gb200", "gb300")
PRODUCTS = ("bf16", "fp8")
POWER_W = {"b200_sxm": 1000, "b300_sxm": 1100, "gb200": 1200, "gb300": 1400}


def long_products(name: str, data_type: str) -> tuple[float, float, float | None]:
    """Return the sustained and the peak rate of products, and the power limit between them."""
    profile = load_profile(name)
    products, costs = profile.product_rates(data_type), profile.running_costs
    assert products and costs and costs.gpu_power
    return products.sustained_flops.value, costs.gpu_power.value, profile.peak_flops(data_type)


@pytest.mark.parametrize("data_type", PRODUCTS)
def test_less_power_makes_long_products_slower_in_proportion(data_type: str) -> None:
    rate, watts, peak = long_products("h100_sxm", data_type)
    limited, limited_watts, same_peak = long_products("h100_sxm_500w", data_type)
    assert limited / rate == pytest.approx(limited_watts / watts, rel=1e-3)
    assert same_peak == peak


@pytest.mark.parametrize("data_type", PRODUCTS)
def test_more_power_never_makes_long_products_slower(data_type: str) -> None:
    """By more than a percent: a B300 and a GB200 were measured by different publishers."""
    rates, watts, peaks = zip(*(long_products(name, data_type) for name in POWER_W), strict=True)
    assert watts == (*POWER_W.values(),) and watts == tuple(sorted(watts))
    assert all(less <= 1.01 * more for less, more in itertools.pairwise(rates))
    assert all(rate < peak for rate, peak in zip(rates, peaks, strict=True))


@pytest.mark.parametrize("name", RACKS)
def test_groups_of_8_stay_inside_a_domain_of_72(name: str) -> None:
    cluster = load_profile(name).cluster
    assert (cluster.gpus_per_node.value, cluster.nvlink_gpus) == (4, 72)
    for data in (1, 9, 18, 32):
        mesh = Parallelism(tensor=8, data=data).mesh(cluster.domains_of(8 * data))
        assert mesh.group("tp").inside_one_node
        assert mesh.group("dp").inside_one_node == (data <= 9)


@pytest.mark.parametrize(
    ("num_gpus", "part"),
    [(8, 72), (72, 72), (128, 64), (144, 72), (256, 64), (1024, 64), (160, 40), (148, 72)],
)
def test_a_job_uses_equal_parts_of_domains(num_gpus: int, part: int) -> None:
    """Parts of more than half a domain; 148 GPUs have none, and fill two domains and a node."""
    assert load_profile("gb200").cluster.domains_of(num_gpus) == part


def test_a_group_fills_a_part_of_a_domain_if_no_other_fits() -> None:
    racks, nodes = load_profile("gb200").cluster, load_profile("h100_sxm").cluster
    assert [racks.fills_domain(ranks) for ranks in (32, 36, 40, 64, 72)] == [False] * 2 + [True] * 3
    assert [nodes.fills_domain(ranks) for ranks in (4, 6, 8)] == [False, False, True]
