"""Names that other rooms still import from here."""

from simtrain.scenario.section import name_in_files, section_of

__all__ = ["name_in_files", "section_of"]
