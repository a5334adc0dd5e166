"""How all pictures look, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter

# Okabe and Ito's palette: told apart by readers with any colour vision (jfly.uni-koeln.de/color).
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#BBBBBB"

SMALL = 7
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "simtrain",
    "text.parse_math": False,  # a $ in a name is a $
}
_NO_DATE = {"png": {"Software": None}, "svg": {"Date": None}}
_DOTS_PER_INCH = 200


@contextmanager
def styled() -> Iterator[None]:
    """Within, pictures are drawn in our style, whatever the user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(width_in: float = 7.5, height_in: float = 4.2) -> Figure:
    """An empty picture, as wide as a printed page's text unless told otherwise."""
    return Figure(figsize=(width_in, height_in), layout="constrained")


def plain_numbers(*axes: Axis) -> None:
    """Label logarithmic axes with numbers: their own labels are formulas, which are not drawn."""
    for axis in axes:
        axis.set_major_formatter("{x:,.7g}")
        axis.set_minor_formatter(LogFormatter())


def rule_lines(axes: Axes) -> None:
    """Faint horizontal lines behind the data."""
    axes.grid(axis="y", color=GREY, linewidth=0.5, alpha=0.6)


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """The legend under the picture, where it hides nothing."""
    handles, _ = axes.get_legend_handles_labels()
    handles.sort(key=lambda handle: isinstance(handle, Line2D))  # bars first, then marks
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def save(figure: Figure, path: Path) -> tuple[Path, ...]:
    """Write PNG and SVG without date or version, so that equal pictures are equal files."""
    written = []
    for kind, metadata in _NO_DATE.items():
        target = path.with_name(f"{path.name}.{kind}")
        figure.savefig(target, dpi=_DOTS_PER_INCH, metadata=metadata)
        written.append(target)
    return tuple(written)
