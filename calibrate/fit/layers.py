"""Fits the numbers that show only in whole layers: speeds in situ, and the slowdown of overlap.

Products and kernels are somewhat faster or slower inside a layer than alone. Their speeds, relative
to the microbenchmarks, are fitted to measured forward and backward times of layers. Microbenchmarks
count as measurements too, each with its own spread. The engine simulates the layers, as it does for
every prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from scipy.optimize import least_squares

from calibrate.fit.figures import LayerFigures
from calibrate.fit.numbers import round_significant
from calibrate.records.schema import LayerRecord
from simtrain.comparison import Comparison
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import Scenario, load_scenario
from simtrain.simulation import checked_profile, simulate_layer

_ROUNDING_MS = 0.1 / math.sqrt(12)
"""Standard deviation of a number printed to 0.1 ms."""
_LEFT_OUT = 0.01
"""Relative standard deviation of effects that the model of a layer leaves out."""
_START = 0.99
"""Start of a search, as a share of the highest speed: inside its bounds."""
_WAYS = "forward", "backward"
Estimate = tuple[float, float]
"""A number as microbenchmarks have it, and its relative spread."""


@dataclass(frozen=True, slots=True)
class InSitu:
    """Speeds in a layer relative to microbenchmarks, and the slowdown of overlapping work."""

    products: float = 1.0
    kernels: float = 1.0
    collectives: float = 1.0
    slowdown: float = 0.0
    comparison: Comparison = field(default_factory=lambda: Comparison("layers", "ms", ()))


ProfileWith = Callable[[InSitu], HardwareProfile]
"""The profile with these numbers."""


_TimedLayer = tuple[str, Scenario, Sequence[float], Sequence[float]]
"""Name and scenario of a layer, its milliseconds forward and backward, and the spread of each."""


def fit_published_layers(
    figures: LayerFigures, profile_with: ProfileWith, estimates: Sequence[Estimate]
) -> InSitu:
    """Fit all four numbers to the published times of a layer under each recompute strategy.

    `estimates` are the speeds of products, kernels and collectives as measured alone.
    """
    layers = []
    for strategy, *times_ms in figures.times:
        scenario = load_scenario(figures.scenario.format(strategy=strategy))
        layers.append((strategy, scenario, times_ms, (_ROUNDING_MS,) * 2))
    start = *(value for value, _ in estimates), 0.3
    return _fit("layers", layers, profile_with, estimates, start, (0.0, math.inf))


def fit_layers(
    records: Sequence[LayerRecord],
    profile_with: ProfileWith,
    estimates: Sequence[Estimate],
    limits: Sequence[float],
) -> InSitu:
    """Fit the speeds of products and kernels, none above `limits`, to plain layers.

    Raises:
        InputError: the scenario of a layer is not legal, or has more ranks than the profile.
    """
    profile, layers = profile_with(InSitu()), []
    for number, record in enumerate(records, 1):
        scenario, ways = Scenario.model_validate(record.scenario), (record.forward, record.backward)
        checked_profile(scenario, profile)
        times_ms, spreads_ms = zip(
            *((1e3 * w.median_s, 1e3 * w.spread_s) for w in ways), strict=True
        )
        layers.append((f"layer {number}", scenario, times_ms, spreads_ms))
    start = [min(1.0, _START * limit) for limit in limits]
    return _fit("plain layers", layers, profile_with, estimates, start, (1e-3, limits))


def _fit(
    title: str,
    layers: Sequence[_TimedLayer],
    profile_with: ProfileWith,
    estimates: Sequence[Estimate],
    start: Sequence[float],
    bounds: tuple[float, float | Sequence[float]],
) -> InSitu:
    """The most likely numbers; a search may find only the first of them."""
    spreads_ms = [spread_ms for *_, spreads in layers for spread_ms in spreads]

    def deviations(x: Sequence[float]) -> list[float]:
        """Return the deviations of layers and estimates, in their spreads."""
        rows = _rows(layers, profile_with(_in_situ(x)))
        return [
            *(
                (predicted - measured) / math.hypot(spread_ms, _LEFT_OUT * measured)
                for (_, measured, predicted), spread_ms in zip(rows, spreads_ms, strict=True)
            ),
            *((v / alone - 1) / spread for (alone, spread), v in zip(estimates, x, strict=False)),
        ]

    fit = least_squares(deviations, start, bounds=bounds, diff_step=1e-4)
    best = _in_situ([round_significant(float(value)) for value in fit.x])
    return replace(best, comparison=Comparison.of(title, "ms", _rows(layers, profile_with(best))))


def _in_situ(x: Sequence[float]) -> InSitu:
    names = "products", "kernels", "collectives", "slowdown"
    return replace(InSitu(), **dict(zip(names, map(float, x), strict=False)))  # type: ignore[arg-type]


def _rows(
    layers: Sequence[_TimedLayer], profile: HardwareProfile
) -> Iterator[tuple[str, float, float]]:
    for name, scenario, times_ms, _ in layers:
        passes = simulate_layer(scenario, profile)
        for way, measured_ms, time in zip(_WAYS, times_ms, passes, strict=True):
            yield f"{name} {way}", measured_ms, time.duration_s * 1e3
