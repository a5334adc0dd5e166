"""Figures, drawn with matplotlib and written as PNG and SVG."""
