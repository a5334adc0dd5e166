"""Colours of activities in a terminal: those of the figures."""

from __future__ import annotations

from simtrain.render.figures.style import BLACK
from simtrain.render.figures.timeline import FILLS

STYLES = {name: f"{BLACK} on {colour}" for name, (colour, _) in FILLS.items()}
