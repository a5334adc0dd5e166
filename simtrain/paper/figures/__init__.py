"""Figures of `simtrain reproduce`, one per reproduced table or figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.paper.entries import TargetResult, TimeComparison
from simtrain.paper.figures.errors import draw_errors
from simtrain.paper.figures.layer import draw_fig7, draw_fig8, draw_table2
from simtrain.paper.figures.memory import draw_fig1, draw_fig9, draw_zero
from simtrain.paper.figures.window import draw_window
from simtrain.paper.models import PRESENT, paper_scenario
from simtrain.render.figures.style import picture, write_figure
from simtrain.render.figures.subject import footer, footer_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWINGS: dict[str, Callable[[Any], Figure]] = {
    "table2": draw_table2,
    "fig1": draw_fig1,
    "fig7": draw_fig7,
    "fig8": draw_fig8,
    "fig9": draw_fig9,
    "appendix-c": draw_window,
    "zero": draw_zero,
}

_WITHOUT_PROFILE = {"table2", "fig7", "zero"}
"""Targets that depend on the model alone, not on a hardware profile."""


@picture
def draw(target: str, reproduced: TargetResult) -> Figure:
    """Draw the figure of a target."""
    if isinstance(reproduced, TimeComparison):
        return draw_errors(reproduced)
    return _DRAWINGS[target](reproduced)


def write_paper_figure(target: str, reproduced: TargetResult, folder: Path) -> tuple[Path, ...]:
    """Write `folder/TARGET.png` and `.svg`.

    Raises:
        InputError: the folder cannot be written to.
    """
    subject = f"simtrain reproduce {target}"
    if target in _WITHOUT_PROFILE:
        origin = footer(subject, {})
    else:
        origin = footer_of(subject, paper_scenario("22B", PRESENT).cluster)
    return write_figure(draw(target, reproduced), folder / target, origin)
