"""Names that other rooms still import from here."""

from simtrain.iteration.programs.pipeline import spread

__all__ = ["spread"]
