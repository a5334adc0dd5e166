"""Grouped bar charts; each bar is a stack of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simtrain.render.figures.style import BLACK, Fill, annotate, draw_grid_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GROUP_WIDTH = 0.84
_GAP = 0.06
_OUTLINE: dict[str, Any] = {"edgecolor": BLACK, "linewidth": 0.5}
_DIAMOND: dict[str, Any] = {
    "marker": "D",
    "linestyle": "none",
    "markersize": 4,
    "markerfacecolor": "white",
    "markeredgecolor": BLACK,
}


@dataclass(frozen=True, slots=True)
class StackedBar:
    """A stacked bar.

    Args:
        parts: height of each part, from the bottom, by the part's name.
        text: text above the bar.
        name: name below the bar.
        paper: the height in the paper, drawn as a diamond.
    """

    parts: Mapping[str, float]
    text: str
    name: str = ""
    paper: float | None = None

    @property
    def height(self) -> float:
        """Height of all parts together."""
        return sum(self.parts.values())


def draw_bars(
    axes: Axes,
    groups: Mapping[str, Sequence[StackedBar]],
    fills: Mapping[str, Fill],
    paper_label: str = "paper",
) -> None:
    """Draw groups side by side, with a diamond at the paper's height of each bar."""
    for place, bars in enumerate(groups.values()):
        width = _GROUP_WIDTH / len(bars)
        for number, bar in enumerate(bars):
            x = place + (number + 0.5) * width - _GROUP_WIDTH / 2
            _draw_bar(axes, bar, x, width - _GAP / len(bars), fills)
    named = any(bar.name for bars in groups.values() for bar in bars)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.tick_params(axis="x", length=0, pad=24 if named else 4)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    draw_grid_lines(axes)
    for name, (colour, hatch) in fills.items():
        axes.bar(0, 0, color=colour, hatch=hatch, **_OUTLINE, label=name)
    axes.plot([], [], **_DIAMOND, label=paper_label)


def _draw_bar(
    axes: Axes, bar: StackedBar, x: float, width: float, fills: Mapping[str, Fill]
) -> None:
    bottom = 0.0
    for part, height in bar.parts.items():
        colour, hatch = fills[part]
        axes.bar(x, height, width, bottom, color=colour, hatch=hatch, **_OUTLINE)
        bottom += height
    if bar.paper is not None:
        axes.plot(x, bar.paper, **_DIAMOND)
    top = max(bottom, bar.paper or 0)
    white = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    annotate(axes, bar.text, (x, top), (0, 5), bbox=white)
    annotate(axes, bar.name, (x, 0), (0, -4), xycoords=("data", "axes fraction"), va="top")
