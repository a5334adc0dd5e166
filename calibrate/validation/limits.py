"""The limits of errors in a validation."""

import math
from dataclasses import asdict, dataclass

from simtrain.errors import InputError, Problem

_FIX = "write a percentage of 0 or more"


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest |errors| that are OK, as fractions; `memory_worst` is that of a peak.

    Raises:
        InputError: E730, one is not a number, infinite or negative.
    """

    layers_mean: float = 0.03
    layers_worst: float = 0.08
    iterations_worst: float = 0.05
    memory_worst: float = 0.03

    def __post_init__(self) -> None:
        problems = [
            Problem("E730", f"--{name.replace('_', '-')} is {100 * value:g} %", fix=_FIX)
            for name, value in asdict(self).items()
            if not 0 <= value < math.inf
        ]
        if problems:
            raise InputError(problems)
