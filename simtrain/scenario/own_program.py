"""Names that other rooms still import from here."""

from simtrain.scenario.schema import ProgramReader

__all__ = ["ProgramReader"]
