"""Names that other rooms still import from here."""

from simtrain.schedules.one_f_one_b import SlicedFamily

__all__ = ["SlicedFamily"]
