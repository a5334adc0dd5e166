"""No iteration is shorter than the products of its busiest rank at the peak rates."""

import pytest

from simtrain.iteration.programs.seconds import least_seconds
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate
from tests.helpers.toys import small


def test_a_balanced_pipeline_takes_its_hardware_flops_at_the_peak() -> None:
    """With equal stages and bf16 products, the busiest rank does at least the mean of all."""
    result = simulate(small({"tensor": 1, "pipeline": 1}))
    mean_s = result.hfu * result.iteration_time_s
    assert least_seconds(result.plan, result.profile) == pytest.approx(mean_s)
    staged = simulate(small())
    assert staged.num_stages > 1
    least_s = least_seconds(staged.plan, staged.profile)
    assert least_s >= staged.hfu * staged.iteration_time_s * (1 - 1e-9)


def test_products_in_fp8_count_at_the_peak_of_fp8() -> None:
    plain, fp8 = (
        simulate(load_scenario("llama3_8b", [f"precision.compute={dtype}"]))
        for dtype in ("bf16", "fp8")
    )
    least = [least_seconds(result.plan, result.profile) for result in (plain, fp8)]
    assert least[0] / 2 < least[1] < least[0]
