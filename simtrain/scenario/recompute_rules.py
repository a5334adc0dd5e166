"""Names that other rooms still import from here."""

from simtrain.scenario.memory_rules import absent_modules

__all__ = ["absent_modules"]
