"""Names that other rooms still import from here."""

from simtrain.workload.segments import balanced_lengths

__all__ = ["balanced_lengths"]
