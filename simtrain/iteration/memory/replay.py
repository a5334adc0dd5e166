"""Names that other rooms still import from here."""

from simtrain.iteration.memory.working import MemoryReplay

__all__ = ["MemoryReplay"]
