"""Names that other rooms still import from here."""

from simtrain.iteration.memory.host_memory import OffloadMemory

__all__ = ["OffloadMemory"]
