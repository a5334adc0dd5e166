"""Which picture belongs to which target."""

from __future__ import annotations

from matplotlib.figure import Figure

from simtrain.paper.entries import Comparison, Reproduced
from simtrain.paper.kept_microbatches import AppendixC
from simtrain.paper.pictures.errors import draw_errors
from simtrain.paper.pictures.layer import draw_fig7, draw_fig8, draw_table2
from simtrain.paper.pictures.memory import draw_fig1, draw_fig9, draw_zero
from simtrain.paper.pictures.window import draw_window

_DRAWINGS = {
    "table2": draw_table2,
    "fig1": draw_fig1,
    "fig7": draw_fig7,
    "fig8": draw_fig8,
    "fig9": draw_fig9,
    "zero": draw_zero,
}


def draw(target: str, reproduced: Reproduced) -> Figure:
    """The picture of a target."""
    if isinstance(reproduced, Comparison):
        return draw_errors(reproduced)
    if isinstance(reproduced, AppendixC):
        return draw_window(reproduced)
    return _DRAWINGS[target](reproduced)
