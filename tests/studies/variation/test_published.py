"""Steps of MLPerf's runs beside drawn ones."""

import pytest

from docs.update.variation_cases import FITTED_ON, cases
from simtrain.studies.variation.result import DrawnTimes


def tail(drawn: DrawnTimes) -> float:
    return drawn.time.p99 / drawn.time.p50


@pytest.mark.slow
@pytest.mark.ci
def test_the_tail_grows_with_the_number_of_gpus_from_one_rate() -> None:
    """Published: 1.007 at 512 GPUs, 1.056 at 2,496. The rate is that of another system."""
    first, *_, last = (case for case in cases() if case.system.startswith("MLPerf v5.0"))
    assert (first.num_gpus, last.num_gpus) == (512, 2496)
    for case in (first, last):
        assert case.drawn.time.p50 == pytest.approx(case.median_s, rel=0.05)
    assert 1.003 < tail(first.drawn) < 1.025
    assert 1.04 < tail(last.drawn) < 1.085


@pytest.mark.ci
@pytest.mark.slow
def test_the_fitted_steps_have_about_the_published_deviation() -> None:
    """A coefficient of variation of 1.76 %, and a 99th percentile of 1.0625 medians."""
    drawn = FITTED_ON.drawn
    assert drawn.time.deviation / drawn.time.mean == pytest.approx(0.0176, rel=0.25)
    assert tail(drawn) == pytest.approx(1.0625, abs=0.025)
