"""Names that other rooms still import from here."""

from simtrain.base.process import forget_cached, without_garbage_collection

__all__ = ["forget_cached", "without_garbage_collection"]
