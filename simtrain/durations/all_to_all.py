"""Names that other rooms still import from here."""

from simtrain.durations.collectives import all_to_all_s

__all__ = ["all_to_all_s"]
