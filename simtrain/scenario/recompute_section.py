"""Names that other rooms still import from here."""

from simtrain.scenario.section import (
    DEFAULT_MODULES,
    DEFAULT_SAVED_OPS,
    MODULES,
    OP_KINDS,
    Strategy,
)

__all__ = ["DEFAULT_MODULES", "DEFAULT_SAVED_OPS", "MODULES", "OP_KINDS", "Strategy"]
