"""Simulated gains of fp8, compared with published gains (docs/update/fp8_gains.py)."""

import pytest

from docs.update.fp8_gains import casts_s, fp4_casts_s, products_s
from docs.update.frontier import share_of_cutlass
from docs.update.published.fp8 import FP4_PRODUCTS_MS, TE_PRODUCTS_MS
from simtrain.hardware.load import load_profile, profile_of
from simtrain.scenario import load_scenario


@pytest.mark.parametrize("product", TE_PRODUCTS_MS)
def test_gains_and_casts_of_transformer_engine(product: str) -> None:
    """The gain in speed is within 4 %, the time of casts within 9 %."""
    bf16_ms, fp8_ms, with_casts_ms = TE_PRODUCTS_MS[product]
    gain = products_s(product, "bf16") / products_s(product, "fp8")
    assert gain == pytest.approx(bf16_ms / fp8_ms, rel=0.04)
    assert 1e3 * casts_s(product) == pytest.approx(with_casts_ms - fp8_ms, rel=0.09)


@pytest.mark.parametrize("product", FP4_PRODUCTS_MS)
def test_products_and_casts_in_fp4(product: str) -> None:
    """Products are within 13 %, their median by construction; casts are 19 to 27 % too fast."""
    products_ms, with_casts_ms = FP4_PRODUCTS_MS[product]
    ours_ms = 1e3 * products_s(product, "nvfp4", "b300_sxm")
    assert ours_ms == pytest.approx(products_ms, rel=0.13)
    error = 1e3 * fp4_casts_s(product) / (with_casts_ms - products_ms) - 1
    assert -0.27 < error < -0.19


def test_deepseek_v3_has_the_published_rates_of_its_kernels() -> None:
    """The speedups in DeepGEMM's README give the rates that the scenario sets."""
    scenario = load_scenario("deepseek_v3_2024")
    ours = load_profile("h800_sxm").gemm.by_dtype.fp8_block
    theirs = profile_of(scenario).gemm.by_dtype.fp8_block
    assert ours is not None and theirs is not None
    share = share_of_cutlass()
    for name in ("mainloop_flops", "sustained_flops"):
        rate = getattr(theirs, name).value
        assert rate == pytest.approx(share * getattr(ours, name).value, rel=1e-3)
