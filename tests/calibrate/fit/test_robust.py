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


def trial(seed: int, num_runs: int = 30, num_outliers: int = 0) -> tuple[Floats, Estimate]:
    """Return true parameters, drawn from their priors, and their estimate."""
    draw = np.random.default_rng(seed)
    slopes = draw.uniform(0, 1, (num_runs, 3))
    true = draw.normal(0, WIDTHS)
    errors = draw.normal(0, NOISE, num_runs)
    errors[:num_outliers] += 1.5
    line = slopes @ true
    return true, estimate(problem(slopes, line + 0.1 * line**2 + errors))


def test_nine_of_ten_intervals_contain_the_true_parameter() -> None:
    contained = []
    for seed in range(150):
        true, fit = trial(seed)
        contained.append(np.abs(fit.values - true) <= 1.645 * fit.deviations)
    assert 0.85 <= np.mean(contained) <= 0.95


def test_the_estimate_is_the_most_likely_by_the_formulas() -> None:
    """Student's t with 4 degrees of freedom; the expected scale counts as 4 observations."""
    for num_outliers in (0, 3):
        _, fit = trial(1, 12, num_outliers)
        slopes, ratios = fit.slopes, fit.ratios
        square = NOISE**2
        for _ in range(500):
            weights = 5 / (4 + ratios**2 / square)
            square = (4 * NOISE**2 + np.sum(weights * ratios**2)) / (4 + 12)

        def surprise(step: Floats, square: float = square, fit: Estimate = fit) -> float:
            tails = np.log1p((fit.ratios + fit.slopes @ step) ** 2 / (4 * square))
            return float(5 * np.sum(tails) + np.sum(((fit.values + step) / WIDTHS) ** 2)) / 2

        steps = [sign * row for row in np.diag(fit.deviations / 2) for sign in (-1, 1)]
        assert all(surprise(step) > surprise(np.zeros(3)) for step in steps)

        def spreads(square: float, slopes: Floats = slopes) -> Floats:
            # Of each observation of Student's distribution, 5/7 of the information counts.
            information = slopes.T @ slopes * 5 / 7 / square + np.diag(1 / WIDTHS**2)
            return np.sqrt(np.diag(np.linalg.inv(information)))

        num_fitted = np.sum(1 - (spreads(square) / WIDTHS) ** 2)
        assert fit.scale**2 == pytest.approx(square * 16 / (16 - num_fitted), rel=1e-3)
        assert fit.deviations == pytest.approx(spreads(fit.scale**2))
        assert fit.weights == pytest.approx(5 / (4 + (ratios / fit.scale) ** 2))
