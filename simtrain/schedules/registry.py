"""Names that other rooms still import from here."""

from simtrain.schedules import FAMILIES, NAMED, default_name

__all__ = ["FAMILIES", "NAMED", "default_name"]
