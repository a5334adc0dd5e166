"""Whether a scenario fits follows from its predicted peak and the interval of that peak."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.base.spread import Spread
from simtrain.hardware.interval import PeakErrors
from simtrain.iteration.memory.report import FitVerdict, MemoryFit, surely_fitting_bytes
from simtrain.units import GIB

SIZES = st.integers(2**20, 2**42)
SPREADS = st.builds(Spread, st.floats(0.001, 1), st.floats(-0.5, 0.5))
ERRORS = st.builds(PeakErrors, st.floats(0.001, 1), st.floats(-0.5, 0.5), st.just("own"))
RATIOS = st.floats(0.1, 10)


@given(SPREADS, st.floats(0.01, 0.99))
def test_an_interval_has_its_share_of_the_distribution(spread: Spread, share: float) -> None:
    assert spread.share_below(spread.factor(share)) == pytest.approx(share, abs=1e-9)
    ends = spread.factor(0.05), spread.factor(0.95)
    assert [math.log(end) - spread.centre for end in ends] == pytest.approx(
        [-spread.width, spread.width]
    )


@given(SPREADS, RATIOS, RATIOS)
def test_a_larger_ratio_is_never_less_probable(spread: Spread, one: float, other: float) -> None:
    below = [spread.share_below(ratio) for ratio in sorted((one, other))]
    assert 0 <= below[0] <= below[1] <= 1


@given(SIZES, SIZES, SIZES)
def test_more_memory_never_makes_a_fit_less_sure(peak: int, one: int, other: int) -> None:
    small, large = (FitVerdict(peak, capacity) for capacity in sorted((one, other)))
    order = [MemoryFit.NOT, MemoryFit.PERHAPS, MemoryFit.SURELY]
    assert order.index(small.state) <= order.index(large.state)
    assert small.probability <= large.probability


@given(SIZES, SIZES)
def test_the_state_agrees_with_the_interval_and_the_probability(peak: int, capacity: int) -> None:
    fit = FitVerdict(peak, capacity)
    assert fit.fits == (peak <= capacity)
    assert fit.fits_surely == (fit.interval.p95_bytes <= capacity)
    assert fit.fits == (fit.probability >= 0.5)
    assert bool(fit.doubt) == (not fit.fits_surely and fit.probability >= 0.05)


@given(SIZES, ERRORS)
def test_the_largest_surely_fitting_peak_is_a_limit(capacity: int, errors: PeakErrors) -> None:
    largest = surely_fitting_bytes(capacity, errors)
    assert FitVerdict(largest, capacity, errors=errors).fits_surely
    assert not FitVerdict(largest + 2, capacity, errors=errors).fits_surely


def test_own_peaks_can_doubt_a_fit_but_not_make_one() -> None:
    larger, smaller = (PeakErrors(0.1, math.log(factor), "own") for factor in (1.2, 0.8))
    for peak, errors, state in (
        (50, larger, MemoryFit.SURELY),
        (70, larger, MemoryFit.PERHAPS),
        (79, smaller, MemoryFit.SURELY),
        (81, smaller, MemoryFit.NOT),
    ):
        fit = FitVerdict(peak * GIB, 80 * GIB, errors=errors)
        assert fit.state is state
        assert fit.doubt.startswith("own: expect ")
    assert "(expect 84, 76.0-92.8): may not fit" in str(
        FitVerdict(70 * GIB, 80 * GIB, errors=larger)
    )


def test_a_host_without_memory_never_fits() -> None:
    fit = FitVerdict(GIB, 80 * GIB, host_fits=False)
    assert (fit.state, fit.probability) == (MemoryFit.NOT, 0.0)
    assert "the host has not enough memory" in str(fit)
