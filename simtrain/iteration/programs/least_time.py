"""Names that other rooms still import from here."""

from simtrain.iteration.programs.seconds import least_seconds

__all__ = ["least_seconds"]
