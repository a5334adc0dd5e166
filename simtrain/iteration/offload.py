"""Names that other rooms still import from here."""

from simtrain.iteration.programs.parts import offloaded_bytes

__all__ = ["offloaded_bytes"]
