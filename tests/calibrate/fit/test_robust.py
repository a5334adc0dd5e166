"""Robust fits find parameters of a cheap model within their intervals, whatever outliers do."""

import numpy as np
import pytest

from calibrate.fit.robust import Estimate, FitProblem, Floats, estimate

WIDTHS = np.array([1.0, 0.1, 0.2])
NOISE = 0.05


def problem(slopes: Floats, measured: Floats) -> FitProblem:
    """Return a problem of logarithms that are nearly linear in the parameters."""

    def log_ratios(values: Floats) -> Floats:
        return slopes @ values + 0.1 * (slopes @ values) ** 2 - measured

    return FitProblem(log_ratios, WIDTHS, -4 * WIDTHS, 4 * WIDTHS, NOISE)


def trial(
    seed: int, num_runs: int = 30, num_outliers: int = 0, outlier: float = 1.5
) -> tuple[Floats, Estimate]:
    """Return true parameters, drawn from their priors, and their estimate."""
    draw = np.random.default_rng(seed)
    slopes = draw.uniform(0, 1, (num_runs, 3))
    true = draw.normal(0, WIDTHS)
    errors = draw.normal(0, NOISE, num_runs)
    errors[:num_outliers] += outlier
    line = slopes @ true
    return true, estimate(problem(slopes, line + 0.1 * line**2 + errors))


def test_nine_of_ten_intervals_contain_the_true_parameter() -> None:
    contained = []
    for seed in range(150):
        true, fit = trial(seed)
        contained.append(np.abs(fit.values - true) <= 1.645 * fit.deviations)
    assert 0.85 <= np.mean(contained) <= 0.95


def test_two_wrong_runs_of_twelve_do_no_harm() -> None:
    right, with_wrong, without_any = [], [], []
    for seed in range(30):
        true, fit = trial(seed, 10)
        right.append(np.abs(fit.values - true) / WIDTHS)
        true, fit = trial(seed, 12, num_outliers=2)
        with_wrong.append(np.abs(fit.values - true) / WIDTHS)
        without_any.append(np.abs(true) / WIDTHS)
    assert np.mean(right) < 0.6 * np.mean(without_any)
    assert np.mean(with_wrong) < 1.15 * np.mean(right)


def test_without_observations_of_a_parameter_its_prior_stays() -> None:
    slopes = np.zeros((20, 3))
    slopes[:, 0] = 1
    fit = estimate(problem(slopes, np.full(20, 0.5)))
    assert fit.values[1:] == pytest.approx([0, 0])
    assert fit.deviations[1:] == pytest.approx(WIDTHS[1:])
    assert fit.deviations[0] < 0.05
