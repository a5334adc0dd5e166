"""Fits the speed of products and kernels inside a layer to records of plain layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scipy.optimize import least_squares

from calibrate.fit.published_layers import Expected
from calibrate.fit.residuals import Residual, Residuals, round_significant
from calibrate.records.schema import LayerRecord, Timing
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import Scenario
from simtrain.simulation import checked_profile, simulate_layer

_LEFT_OUT = 0.01
"""Relative standard deviation granted to what the model of a layer leaves out."""
_START = 0.99
"""Of the most that a speed can be: a search starts inside its bounds."""


@dataclass(frozen=True, slots=True)
class InSitu:
    """Speeds of products and of fused kernels in a layer, relative to those measured alone."""

    products: float = 1.0
    kernels: float = 1.0
    residuals: Residuals = field(default_factory=lambda: Residuals("plain layers", "ms", ()))


def fit_layers(
    records: Sequence[LayerRecord],
    profile_with: Callable[[InSitu], HardwareProfile],
    products: Expected,
    kernels: Expected,
    limits: tuple[float, float],
) -> InSitu:
    """The most likely two speeds, none above `limits`, given layers that are not held out.

    What was measured alone counts too, with its own spread, as in `layer_fit`.

    Raises:
        InputError: the scenario of a layer is not legal, or has more ranks than the profile.
    """
    profile = profile_with(InSitu())
    scenarios = [Scenario.model_validate(record.scenario) for record in records]
    for scenario in scenarios:
        checked_profile(scenario, profile)
    timed = [(record.forward, record.backward) for record in records]

    def rows(x: Sequence[float]) -> list[Residual]:
        guess = profile_with(InSitu(float(x[0]), float(x[1])))
        return [
            Residual(f"layer {number} {way}", time.median_s * 1e3, simulated.duration_s * 1e3)
            for number, (scenario, times) in enumerate(zip(scenarios, timed, strict=True), 1)
            for way, time, simulated in zip(
                ("forward", "backward"), times, simulate_layer(scenario, guess), strict=True
            )
        ]

    def deviations(x: Sequence[float]) -> list[float]:
        layers = (
            (row.fitted - row.measured) / _deviation_ms(time)
            for row, time in zip(rows(x), (time for pair in timed for time in pair), strict=True)
        )
        return [*layers, products.deviation(x[0]), kernels.deviation(x[1])]

    start = [min(1.0, _START * limit) for limit in limits]
    fit = least_squares(deviations, start, bounds=(1e-3, limits), diff_step=1e-4)
    best = [round_significant(float(value)) for value in fit.x]
    return InSitu(best[0], best[1], Residuals("plain layers", "ms", rows(best)))


def _deviation_ms(time: Timing) -> float:
    return 1e3 * math.hypot(time.spread_s, _LEFT_OUT * time.median_s)
