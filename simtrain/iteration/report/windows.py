"""Names that other rooms still import from here."""

from simtrain.iteration.report.spans import Window, check_selection, windows_of

__all__ = ["Window", "check_selection", "windows_of"]
