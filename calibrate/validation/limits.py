"""The limits of errors in a validation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Self

from simtrain.errors import InputError, Problem

if TYPE_CHECKING:
    from simtrain.hardware.profile import HardwareProfile

_FIX = "write a percentage of 0 or more"


@dataclass(frozen=True, slots=True)
class ErrorLimits:
    """Largest |errors| that are OK, as fractions; None is no limit.

    Args:
        layers_mean, layers_worst, iterations_worst: of times.
        memory_worst: of a peak.
        nine_of_ten: of nine of ten times, instead of the limits of times.
        times_mean: of the mean of all times, however wide the interval is that a profile states.

    Raises:
        InputError: E730, one is not a number, infinite or negative.
    """

    layers_mean: float | None = 0.03
    layers_worst: float | None = 0.08
    iterations_worst: float | None = 0.05
    memory_worst: float = 0.03
    nine_of_ten: float | None = None
    times_mean: float | None = 0.25

    @classmethod
    def of(cls, profile: HardwareProfile) -> Self:
        """What a profile says of itself, or the usual limits if it says nothing."""
        if profile.uncertainty is None:
            return cls()
        return cls(None, None, None, nine_of_ten=profile.uncertainty.value)

    def __post_init__(self) -> None:
        problems = [
            Problem("E730", f"--{name.replace('_', '-')} is {100 * value:g} %", fix=_FIX)
            for name, value in asdict(self).items()
            if value is not None and not 0 <= value < math.inf
        ]
        if problems:
            raise InputError(problems)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits of errors as a command line writes them, in percent; None if it does not.

    Args:
        layers_mean: largest mean |error| of layers, in percent.
        layers_worst: largest |error| of a layer's pass, in percent.
        iterations_worst: largest |error| of an iteration, in percent.
        memory_worst: largest |error| of a memory peak, in percent.
        times_mean: largest mean |error| of all times, in percent. Default: 25, or none with limits
            of layers or iterations.
    """

    layers_mean: float | None = None
    layers_worst: float | None = None
    iterations_worst: float | None = None
    memory_worst: float = 100 * ErrorLimits().memory_worst
    times_mean: float | None = None

    def of(self, profile: HardwareProfile) -> ErrorLimits:
        """Return the limits, as fractions. What a profile says of itself holds by default.

        Limits of layers or of iterations replace all limits of times by default.
        """
        times = self.layers_mean, self.layers_worst, self.iterations_worst
        layers_mean, layers_worst, iterations_worst = map(_fraction, times)
        memory_worst, times_mean = self.memory_worst / 100, _fraction(self.times_mean)
        if times == (None, None, None):
            limits = replace(ErrorLimits.of(profile), memory_worst=memory_worst)
            return limits if times_mean is None else replace(limits, times_mean=times_mean)
        of_times = layers_mean, layers_worst, iterations_worst
        return ErrorLimits(*of_times, memory_worst, times_mean=times_mean)


def _fraction(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
