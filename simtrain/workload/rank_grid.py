"""Names that other rooms still import from here."""

from simtrain.workload.tape import RankGrid

__all__ = ["RankGrid"]
