"""Names that other rooms still import from here."""

from simtrain.engine.timeline import idle_seconds

__all__ = ["idle_seconds"]
