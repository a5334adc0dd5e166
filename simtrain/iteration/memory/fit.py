"""Names that other rooms still import from here."""

from simtrain.iteration.memory.report import (
    PEAK_SPREAD,
    FitVerdict,
    MemoryFit,
    surely_fitting_bytes,
)

__all__ = ["PEAK_SPREAD", "FitVerdict", "MemoryFit", "surely_fitting_bytes"]
