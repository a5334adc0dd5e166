"""Figures, drawn with matplotlib and written as PNG and SVG.

matplotlib takes longer to import than most commands run, so only functions import it.
"""
