"""Names that other rooms still import from here."""

from simtrain.iteration.report.operators import Records, Rows

__all__ = ["Records", "Rows"]
