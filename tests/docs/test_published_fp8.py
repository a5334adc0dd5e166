"""Simulated gains of fp8, compared with published gains (docs/update/fp8_gains.py)."""

import pytest

from docs.update.fp8_gains import casts_s, products_s
from docs.update.published.fp8 import TE_PRODUCTS_MS


@pytest.mark.parametrize("product", TE_PRODUCTS_MS)
def test_gains_and_casts_of_transformer_engine(product: str) -> None:
    """The gain in speed is within 4 %, the time of casts within 9 %."""
    bf16_ms, fp8_ms, with_casts_ms = TE_PRODUCTS_MS[product]
    gain = products_s(product, "bf16") / products_s(product, "fp8")
    assert gain == pytest.approx(bf16_ms / fp8_ms, rel=0.04)
    assert 1e3 * casts_s(product) == pytest.approx(with_casts_ms - fp8_ms, rel=0.09)
