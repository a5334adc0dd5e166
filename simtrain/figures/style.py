"""How all pictures look, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simtrain.extras import require
from simtrain.output_folder import writing_to

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

# Okabe and Ito's palette: told apart by readers with any colour vision (jfly.uni-koeln.de/color).
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#BBBBBB"

SMALL = 7
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
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
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(width_in: float = 7.5, height_in: float = 4.2) -> Figure:
    """An empty picture, as wide as a printed page's text unless told otherwise."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def new_axes(width_in: float = 7.5, height_in: float = 4.2) -> tuple[Figure, Axes]:
    """An empty picture, and its only axes."""
    figure = new_figure(width_in, height_in)
    return figure, figure.subplots()


def annotate(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any
) -> Annotation:
    """Write small text at a place of the axes, moved by an offset in points."""
    how.setdefault("ha", "center")
    return axes.annotate(text, at, offset, textcoords="offset points", fontsize=SMALL, **how)


def plain_numbers(*axes: Axis) -> None:
    """Label logarithmic axes with numbers: their own labels are formulas, which are not drawn."""
    from matplotlib.ticker import LogFormatter

    for axis in axes:
        axis.set_major_formatter("{x:,.7g}")
        axis.set_minor_formatter(LogFormatter())


def rule_lines(axes: Axes, axis: Literal["x", "y", "both"] = "y") -> None:
    """Faint lines behind the data, horizontal unless told otherwise."""
    axes.grid(axis=axis, color=GREY, linewidth=0.5, alpha=0.6)


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """The legend under the picture, where it hides nothing."""
    from matplotlib.lines import Line2D

    handles, _ = axes.get_legend_handles_labels()
    handles.sort(key=lambda handle: isinstance(handle, Line2D))  # bars first, then marks
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def write_figure(draw: Callable[[], Figure], path: Path) -> tuple[Path, ...]:
    """Write `path.png` and `path.svg` in our style; equal numbers give equal bytes.

    Raises:
        InputError: matplotlib is not installed; the folder cannot be written to.
    """
    require("drawing pictures", "matplotlib")
    with styled(), writing_to(path.parent, "pictures"):
        return save(draw(), path)


def save(figure: Figure, path: Path) -> tuple[Path, ...]:
    """Write PNG and SVG without date or version, so that equal figures are equal files."""
    written = []
    for kind, metadata in _NO_DATE.items():
        target = path.with_name(f"{path.name}.{kind}")
        figure.savefig(target, dpi=_DOTS_PER_INCH, metadata=metadata)
        written.append(target)
    return tuple(written)
