"""Pictures of a result for Python and notebooks: each function returns a matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simtrain.extras import require
from simtrain.figures.breakdown import draw_breakdown
from simtrain.figures.iteration_memory import draw_memory
from simtrain.figures.style import styled
from simtrain.figures.timeline import draw_timeline
from simtrain.report.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_timeline(
    result: Result,
    stages: Sequence[int] | None = None,
    window_s: tuple[float, float] | None = None,
    *,
    memory: bool = True,
) -> Figure:
    """Draw the activities of each stage over time, and the memory of three stages below.

    Args:
        result: the iteration.
        stages: the stages to draw; by default all.
        window_s: start and end of the time to draw, in seconds; by default the whole iteration.
        memory: whether to draw memory.

    Raises:
        InputError: matplotlib is not installed (E701); a stage does not exist, or the window is
            outside the iteration (E118).
    """
    require("drawing pictures", "matplotlib")
    with styled():
        return draw_timeline(result, stages, window_s, memory=memory)


def plot_breakdown(result: Result) -> Figure:
    """Draw the time of each stage by cause, as stacked bars.

    Raises:
        InputError: matplotlib is not installed (E701).
    """
    require("drawing pictures", "matplotlib")
    with styled():
        return draw_breakdown(result)


def plot_memory(result: Result) -> Figure:
    """Draw the peak memory of each stage by component, and the memory of three stages over time.

    Raises:
        InputError: matplotlib is not installed (E701).
    """
    require("drawing pictures", "matplotlib")
    with styled():
        return draw_memory(result)
