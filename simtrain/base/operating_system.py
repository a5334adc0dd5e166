"""Names that other rooms still import from here."""

from simtrain.base.process import MOST_WORKERS, num_processors, physical_memory_bytes

__all__ = ["MOST_WORKERS", "num_processors", "physical_memory_bytes"]
