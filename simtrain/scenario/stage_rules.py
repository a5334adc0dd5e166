"""Names that other rooms still import from here."""

from simtrain.scenario.schedule_rules import numbers_of_chunks

__all__ = ["numbers_of_chunks"]
