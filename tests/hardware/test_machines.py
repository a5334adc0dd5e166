"""Laws between shipped profiles of related machines, and NVLink domains of 72 GPUs."""

import pytest

from simtrain.hardware.load import load_profile
from simtrain.scenario.parallelism import Parallelism

RACKS = ("gb200", "gb300")
PRODUCTS = ("bf16", "fp8")
POWER_W = {"b200_sxm": 1000, "b300_sxm": 1100, "gb200": 1200, "gb300": 1400}


@pytest.mark.parametrize("data_type", PRODUCTS)
def test_less_power_makes_long_products_slower_in_proportion(data_type: str) -> None:
    full, limited = (load_profile(name) for name in ("h100_sxm", "h100_sxm_500w"))
    rates, watts = [], []
    for profile in (full, limited):
        products = profile.product_rates(data_type)
        assert products and profile.running_costs and profile.running_costs.gpu_power
        rates.append(products.sustained_flops.value)
        watts.append(profile.running_costs.gpu_power.value)
    assert rates[1] / rates[0] == pytest.approx(watts[1] / watts[0], rel=1e-3)
    assert limited.peak_flops(data_type) == full.peak_flops(data_type)


@pytest.mark.parametrize("data_type", PRODUCTS)
def test_more_power_never_makes_long_products_slower(data_type: str) -> None:
    rates = []
    for name in sorted(POWER_W, key=POWER_W.__getitem__):
        profile = load_profile(name)
        products = profile.product_rates(data_type)
        assert products and profile.running_costs
        assert profile.running_costs.gpu_power.value == POWER_W[name]
        peak = profile.peak_flops(data_type)
        assert peak and products.sustained_flops.value < peak
        rates.append(products.sustained_flops.value)
    assert rates == sorted(rates)


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
