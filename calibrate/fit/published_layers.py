"""Fits what only a whole layer shows: speed in situ, and running side by side.

Microbenchmarks say how fast products and memory-bound kernels are alone; inside a layer they are
somewhat faster or slower. Four numbers are fitted to the measured forward and backward times of
one layer under each recompute strategy: the speeds of products, kernels and collectives relative
to their microbenchmarks, which count as measured too, each with its own spread; and how much a
kernel and a collective slow each other. The layer is simulated by the engine, as in every
prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scipy.optimize import least_squares

from calibrate.fit.figures import Figures
from calibrate.fit.residuals import Residual, Residuals, round_significant
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import Scenario, load_scenario
from simtrain.simulation import simulate_layer

_ROUNDING_MS = 0.1 / math.sqrt(12)
"""Standard deviation of a number printed to 0.1 ms."""
_LEFT_OUT = 0.01
"""Relative standard deviation granted to what the model of a layer leaves out."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What microbenchmarks say of a number, and their relative spread."""

    value: float
    spread: float

    def deviation(self, value: float) -> float:
        """How many spreads a value is away."""
        return (value / self.value - 1) / self.spread


@dataclass(frozen=True, slots=True)
class LayerFit:
    """The four numbers; the speeds are relative to the microbenchmarks' fits."""

    in_situ_speed: float
    fused_speed: float
    collective_speed: float
    slowdown: float
    residuals: Residuals = field(default_factory=lambda: Residuals("layers", "ms", ()))


def fit_layer(
    figures: Figures,
    profile_with: Callable[[LayerFit], HardwareProfile],
    products: Expected,
    kernels: Expected,
    collectives: Expected,
) -> LayerFit:
    """The most likely numbers, given the layers and the microbenchmarks.

    `profile_with` makes the profile of a guess; `products`, `kernels` and `collectives` are
    what is expected of the three speeds.
    """
    scenarios = [
        load_scenario(figures.layer.scenario.format(strategy=strategy))
        for strategy, _, _ in figures.layer.times
    ]

    def rows(x: Sequence[float]) -> list[Residual]:
        return _rows(figures, scenarios, profile_with(_guess(x)))

    def deviations(x: Sequence[float]) -> list[float]:
        return [
            *(_deviation_of_layer(row) for row in rows(x)),
            products.deviation(x[0]),
            kernels.deviation(x[1]),
            collectives.deviation(x[2]),
        ]

    start = (products.value, kernels.value, collectives.value, 0.3)
    fit = least_squares(deviations, start, bounds=(0.0, math.inf), diff_step=1e-4)
    best = [round_significant(float(value)) for value in fit.x]
    return replace(_guess(best), residuals=Residuals("layers", "ms", rows(best)))


def _guess(x: Sequence[float]) -> LayerFit:
    in_situ_speed, fused_speed, collective_speed, slowdown = (float(value) for value in x)
    return LayerFit(in_situ_speed, fused_speed, collective_speed, slowdown)


def _deviation_of_layer(row: Residual) -> float:
    return (row.fitted - row.measured) / math.hypot(_ROUNDING_MS, _LEFT_OUT * row.measured)


def _rows(
    figures: Figures, scenarios: Sequence[Scenario], profile: HardwareProfile
) -> list[Residual]:
    rows: list[Residual] = []
    for (strategy, *measured_ms), scenario in zip(figures.layer.times, scenarios, strict=True):
        passes = simulate_layer(scenario, profile)
        for way, ms, time in zip(("forward", "backward"), measured_ms, passes, strict=True):
            rows.append(Residual(f"{strategy} {way}", ms, time.duration_s * 1e3))
    return rows
