"""Names that other rooms still import from here."""

from simtrain.workload.model_ends import GetBatch

__all__ = ["GetBatch"]
