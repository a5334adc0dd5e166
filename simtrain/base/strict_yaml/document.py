"""Names that other rooms still import from here."""

from simtrain.base.strict_yaml.reading import Place, dotted, move_places, section

__all__ = ["Place", "dotted", "move_places", "section"]
