"""Names that other rooms still import from here."""

from simtrain.iteration.memory.working import makes_gradients, memory_with_exchanges

__all__ = ["makes_gradients", "memory_with_exchanges"]
