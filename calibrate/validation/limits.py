"""The limits of errors in a validation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from simtrain.errors import InputError, Problem

if TYPE_CHECKING:
    from simtrain.hardware.profile import HardwareProfile

_FIX = "write a percentage of 0 or more"


@dataclass(frozen=True, slots=True)
class Limits:
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
