"""The limits of errors in a validation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from simtrain.errors import InputError, Problem


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest |errors| that are OK, as fractions; `memory_worst` is that of a peak.

    Raises:
        InputError: one is no number, infinite or negative.
    """

    layers_mean: float = 0.03
    layers_worst: float = 0.08
    iterations_worst: float = 0.05
    memory_worst: float = 0.03

    def __post_init__(self) -> None:
        bad = {name: value for name, value in asdict(self).items() if not 0 <= value < math.inf}
        if bad:
            raise InputError(_bad_limit(name, value) for name, value in bad.items())


def _bad_limit(name: str, value: float) -> Problem:
    option = f"--{name.replace('_', '-')}"
    return Problem("E730", f"{option} is {100 * value:g} %", fix="give a percentage of 0 or more")
