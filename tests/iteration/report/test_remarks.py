"""Remarks on a result."""

import pytest

from simtrain.iteration.report.remarks import remarks_on
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate

PEAK = "hardware.gpu.peak_flops=1200 TFLOP/s"
RATES = ("hardware.gemm.mainloop_flops=800 TFLOP/s", "hardware.gemm.sustained_flops=800 TFLOP/s")


def remark(*changes: str) -> str:
    """Return the remark on a peak that products do not follow; "" if there is none."""
    scenario = load_scenario("llama3_8b", (*changes, "batch.micro=1"))
    words = "not the time of matrix products"
    return next((one for one in remarks_on(simulate(scenario)) if words in one), "")


@pytest.mark.parametrize("changed", [0, 1])
def test_a_changed_peak_says_which_rates_products_keep(changed: int) -> None:
    text = remark(PEAK, *RATES[:changed])
    kept = [name.partition("=")[0] for name in RATES]
    assert text.startswith("hardware.gpu.peak_flops changes MFU and the time of fused attention")
    assert [name in text for name in kept] == [not changed, True]


def test_a_peak_without_a_change_or_with_its_rates_has_no_remark() -> None:
    assert remark() == remark(*RATES) == remark(PEAK, *RATES) == ""


def stacks_named(*changes: str) -> list[str]:
    result = simulate(load_scenario("table4_baseline", changes))
    return [one for one in remarks_on(result) if one.startswith("software is ")]


def test_the_papers_stack_on_a_newer_machine_has_a_remark_with_the_usual_one() -> None:
    (text,) = stacks_named("cluster=h100_sxm")
    assert text.endswith("Set software: megatron_core to simulate them.")
    assert stacks_named() == stacks_named("cluster=h100_sxm", "software=megatron_core") == []
