"""Style of all figures, what they show in title and footer, ticks, and writing them to files."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from simtrain.base.extras import require
from simtrain.base.output_folder import check_suffix, replacing, writing_to
from simtrain.base.resources import provenance
from simtrain.base.strict_yaml import as_scalar
from simtrain.base.version import VERSION
from simtrain.errors import printable
from simtrain.iteration.report.result import Result

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

# Okabe and Ito's palette: distinct for any colour vision (jfly.uni-koeln.de/color).
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, WHITE = "#BBBBBB", "#FFFFFF"

SMALL = 7
Fill = tuple[str, str]
"""Colour and hatch; the hatch distinguishes neighbours in greyscale."""
Parameters = ParamSpec("Parameters")
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # part of matplotlib, hence the same on every machine
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
    "text.parse_math": False,  # otherwise a $ in a name would start a formula
}
_NO_DATE = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
PICTURE_SUFFIXES = tuple(f".{kind}" for kind in _NO_DATE)
_DOTS_PER_INCH = 200
_FOOTER_IN, _LEFT_IN = 0.2, 0.06
_FOOTER_SIZE = 6
_OUTLINE_POINTS = 0.4
"""Width of the outline of bars that touch, which separates them in greyscale."""
_MOST_OUTLINED = 64
"""Bars have an outline up to this number of stages."""


@contextmanager
def styled() -> Iterator[None]:
    """Apply our style within this context, and ignore the user's matplotlibrc."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A character of a user's name that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def picture(draw: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Let a function draw in our style; without matplotlib it raises an InputError (E701)."""

    @functools.wraps(draw)
    def draw_styled(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Figure:
        require("drawing pictures", "matplotlib")
        with styled():
            return draw(*args, **kwargs)

    return draw_styled


def new_figure(width_in: float = 7.5, height_in: float = 4.2) -> Figure:
    """Create a figure with a strip at the bottom for the footer.

    Args:
        width_in: width in inches; by default the text width of a printed page.
        height_in: height in inches without the strip.
    """
    from matplotlib.figure import Figure

    whole_in = height_in + _FOOTER_IN
    figure = Figure(figsize=(width_in, whole_in), layout="constrained")
    _reserve_strip(figure, _FOOTER_IN / whole_in)
    return figure


def new_axes(width_in: float = 7.5, height_in: float = 4.2) -> tuple[Figure, Axes]:
    """Create a figure with one axes."""
    figure = new_figure(width_in, height_in)
    return figure, figure.subplots()


def annotate(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any
) -> Annotation:
    """Write small text at a point of the axes, moved by an offset in points."""
    how.setdefault("ha", "center")
    return axes.annotate(text, at, offset, textcoords="offset points", fontsize=SMALL, **how)


def draw_grid_lines(axes: Axes, axis: Literal["x", "y", "both"] = "y") -> None:
    """Draw faint grid lines behind the data, horizontal by default."""
    axes.grid(axis=axis, color=GREY, linewidth=0.5, alpha=0.6)


def draw_stage_bars(
    axes: Axes, heights: Mapping[str, Sequence[float]], fills: Iterable[Fill]
) -> None:
    """Draw a stacked bar per pipeline stage.

    Args:
        axes: an empty axes.
        heights: [stages], height of each part by its label, from the bottom.
        fills: one per part.
    """
    from matplotlib.ticker import MaxNLocator

    num_stages = len(next(iter(heights.values())))
    line = _OUTLINE_POINTS if num_stages <= _MOST_OUTLINED else 0.0
    bottom = [0.0] * num_stages
    for (label, parts), (colour, hatch) in zip(heights.items(), fills, strict=True):
        how: dict[str, Any] = {"color": colour, "edgecolor": BLACK, "linewidth": line}
        axes.bar(range(num_stages), parts, 0.85, bottom, hatch=hatch, label=label, **how)
        bottom = [low + height for low, height in zip(bottom, parts, strict=True)]
    axes.set_xlabel("pipeline stage")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Put the legend of an axes below all axes."""
    from matplotlib.lines import Line2D

    handles, _ = axes.get_legend_handles_labels()
    handles.sort(key=lambda handle: isinstance(handle, Line2D))  # bars first, then marks
    legend_of(figure, handles, columns)


def legend_of(figure: Figure, handles: list[Artist], columns: int) -> None:
    """Put a legend of these handles below all axes, above the footer."""
    # matplotlib puts an "outside" legend at the figure's edge, where it would cover the footer.
    _, strip, _, height = figure.get_layout_engine().get()["rect"]  # type: ignore[union-attr]
    box = 0, strip, 1, height
    legend = figure.legend(handles=handles, loc="lower center", bbox_to_anchor=box, ncols=columns)
    _reserve_strip(figure, strip + legend.get_window_extent().height / figure.bbox.height)


def _reserve_strip(figure: Figure, share: float) -> None:
    figure.get_layout_engine().set(rect=(0, share, 1, 1 - share))  # type: ignore[union-attr, call-arg]


def write_figure(figure: Figure, path: Path, footer: str) -> tuple[Path, ...]:
    """Write `path.png` and `path.svg`; equal data give identical files.

    Args:
        figure: a figure of `new_figure` or `new_axes`.
        path: the path without the suffix.
        footer: small text at the bottom: the figure's origin.

    Raises:
        InputError: the folder cannot be written to (E113).
    """
    files = tuple(path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg"))
    with styled(), writing_to(path.parent, "pictures"):
        _add_footer(figure, footer)
        save(figure, files)
    return files


def check_picture_file(file: Path) -> None:
    """Check that pictures can be drawn and that a file's suffix names a known format.

    Raises:
        InputError: matplotlib is not installed (E701), or the suffix is unknown (E117).
    """
    require("drawing pictures", "matplotlib")
    check_suffix(file, PICTURE_SUFFIXES, "pictures")


def write_picture(figure: Figure, file: Path, footer: str) -> None:
    """Write a picture in the format that the file's suffix names, and replace an older file.

    `figure` and `footer` are as for `write_figure`.

    Raises:
        InputError: the suffix is unknown (E117), or the file cannot be written (E113).
    """
    check_picture_file(file)
    with styled(), writing_to(file, "a picture"):
        _add_footer(figure, footer)
        save(figure, [file])


def save(figure: Figure, files: Iterable[Path]) -> None:
    """Write files without a date, because equal figures must give identical files."""
    _fix_layout(figure)
    for file in files:
        metadata = _NO_DATE[file.suffix.removeprefix(".").lower()]
        with replacing(file) as unfinished:
            figure.savefig(unfinished, dpi=_DOTS_PER_INCH, metadata=metadata)


def png_bytes(figure: Figure) -> bytes:
    """Return a figure as PNG, for a page."""
    with styled(), io.BytesIO() as file:
        _fix_layout(figure)
        figure.savefig(file, format="png", dpi=_DOTS_PER_INCH, metadata=_NO_DATE["png"])
        return file.getvalue()


def _fix_layout(figure: Figure) -> None:
    """Lay out once, and round the positions: the last digits of the solver are not deterministic.

    kiwisolver keeps its constraints in an order that differs between processes.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text(printable(text.get_text()))  # SVG, like all XML, has no control characters
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(value, 4) for value in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def _add_footer(figure: Figure, text: str) -> None:
    """Write the footer into the strip that `new_figure` leaves free, cut to the figure's width."""
    width_in, height_in = figure.get_size_inches()
    most = int((width_in - 2 * _LEFT_IN) * 72 / (0.56 * _FOOTER_SIZE))
    line = text if len(text) <= most else f"{text[: most - 1]}…"
    x, y = _LEFT_IN / width_in, 0.05 / height_in
    figure.text(x, y, line, fontsize=_FOOTER_SIZE, color="#555555", va="bottom")


_DIGEST_DIGITS = 8
_MOST_CHANGES = 2
"""Changed values that a footer lists; more would not fit its line."""


def subject_of(result: Result) -> str:
    """Return how titles name the scenario of a result."""
    return f"scenario {result.scenario.name}" if result.scenario.name else "the scenario"


def with_changes(subject: str, changes: Sequence[str]) -> str:
    """Add changed values to the subject of a footer: "175b with recompute=full and 2 more changes".

    The line has room for two changes; the others are counted.
    """
    if not changes:
        return subject
    num_more = len(changes) - _MOST_CHANGES
    more = f" and {num_more} more change{'s' * (num_more > 1)}" if num_more > 0 else ""
    return f"{subject} with {', '.join(changes[:_MOST_CHANGES])}{more}"


def footer(subject: str, profiles: Mapping[str, str], version: str = VERSION) -> str:
    """Return the footer: what a figure shows, and which profile and version computed it.

    Args:
        subject: the scenario, sweep or table.
        profiles: SHA-256 of each hardware profile's file, by name.
        version: the version of simtrain that computed the numbers.
    """
    named = [f"{name} (SHA-256 {sha[:_DIGEST_DIGITS]})" for name, sha in profiles.items()]
    profile = [f"profile {', '.join(named)}"] if named else []
    return " · ".join([subject, *profile, f"simtrain {version}"])


def footer_of(subject: str, cluster: str) -> str:
    """Return the footer of results on one cluster, a profile's name or path."""
    made = provenance(cluster)
    return footer(subject, {Path(cluster).name: made["profile_sha256"]})


def footer_of_result(result: Result) -> str:
    """Return the footer of a result, with the values that differ from the scenario's file."""
    values = result.scenario.changed_values
    changes = [f"{name}={as_scalar(value)}" for name, value in values.items()]
    return footer_of(with_changes(subject_of(result), changes), result.scenario.cluster)


_WIDE_RATIO = 8
"""From this ratio on, ticks at 1, 2 and 5 times powers of ten are enough."""
_MARGIN = 1.15


def set_logarithmic(axis: Axis, values: Sequence[float]) -> None:
    """Make an axis logarithmic, with limits around the values, and ticks such as 10k or 2M."""
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

    name = "x" if axis is axis.axes.xaxis else "y"
    limits = min(values) / _MARGIN, max(values) * _MARGIN
    axis.axes.set(**{f"{name}scale": "log", f"{name}lim": limits})
    is_wide = limits[1] > _WIDE_RATIO * limits[0]
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if is_wide else MaxNLocator(6))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_locator(NullLocator())
