"""Names that other rooms still import from here."""

from simtrain.engine.run import DeadlockError, Wait

__all__ = ["DeadlockError", "Wait"]
