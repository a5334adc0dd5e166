"""Names that other rooms still import from here."""

from simtrain.scenario.section import OFFLOAD_MODULES

__all__ = ["OFFLOAD_MODULES"]
