"""Fits the numbers that show only in whole layers: speeds in situ, and the slowdown of overlap.

Products and kernels are somewhat faster or slower inside a layer than alone. Their speeds, relative
to the microbenchmarks, are fitted to measured forward and backward times of layers. Microbenchmarks
count as measurements too, each with its own spread. The engine simulates the layers, as it does for
every prediction.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from scipy.optimize import least_squares

from calibrate.fit.base import round_significant
from simtrain.base.accuracy import ErrorTable
from simtrain.hardware.profile import HardwareProfile
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate_layer

_LEFT_OUT = 0.01
"""Relative standard deviation of effects that the model of a layer leaves out."""
TimedLayer = tuple[str, Scenario, Sequence[float], Sequence[float]]
"""Name and scenario of a layer, its milliseconds forward and backward, and the spread of each."""


@dataclass(frozen=True, slots=True)
class InSitu:
    """Speeds in a layer relative to microbenchmarks, and the slowdown of overlapping work."""

    products: float = 1.0
    kernels: float = 1.0
    collectives: float = 1.0
    slowdown: float = 0.0
    comparison: ErrorTable = field(kw_only=True, default=ErrorTable("layers", "ms", ()))


def fit_layers(
    title: str,
    layers: Sequence[TimedLayer],
    profile_with: Callable[[InSitu], HardwareProfile],
    estimates: Sequence[tuple[float, float]],
    start: Sequence[float],
    bounds: tuple[float, float | Sequence[float]],
) -> InSitu:
    """The most likely numbers of `InSitu`, of which a search may find the first only.

    `profile_with` makes the profile with these numbers. `estimates` are the first numbers as
    microbenchmarks have them, and the relative spread of each.
    """
    spreads_ms = [spread_ms for *_, spreads in layers for spread_ms in spreads]

    def deviations(x: Sequence[float]) -> list[float]:
        rows = _rows(layers, profile_with(InSitu(*map(float, x))))
        return [
            *(
                (predicted - measured) / math.hypot(spread_ms, _LEFT_OUT * measured)
                for (_, measured, predicted), spread_ms in zip(rows, spreads_ms, strict=True)
            ),
            *((v / alone - 1) / spread for (alone, spread), v in zip(estimates, x, strict=False)),
        ]

    fit = least_squares(deviations, start, bounds=bounds, diff_step=1e-4)
    best = InSitu(*(round_significant(float(value)) for value in fit.x))
    return replace(best, comparison=ErrorTable.of(title, "ms", _rows(layers, profile_with(best))))


def _rows(
    layers: Sequence[TimedLayer], profile: HardwareProfile
) -> Iterator[tuple[str, float, float]]:
    for name, scenario, times_ms, _ in layers:
        ways = zip(("forward", "backward"), times_ms, strict=True)
        for (way, measured_ms), time in zip(ways, simulate_layer(scenario, profile), strict=True):
            yield f"{name} {way}", measured_ms, time.duration_s * 1e3
