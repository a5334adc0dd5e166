"""Names that other rooms still import from here."""

from simtrain.scenario.section import divisors

__all__ = ["divisors"]
