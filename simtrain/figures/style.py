"""Style and footer of all figures, and writing them to files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simtrain.extras import require
from simtrain.output_folder import check_suffix, replacing, writing_to
from simtrain.provenance import provenance
from simtrain.version import VERSION

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

# Okabe and Ito's palette: distinct for any colour vision (jfly.uni-koeln.de/color).
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, WHITE = "#BBBBBB", "#FFFFFF"

SMALL = 7
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
_DOTS_PER_INCH = 200
_FOOTER_IN, _NOTE_IN, _LEFT_IN = 0.2, 0.14, 0.06
_FOOTER_SIZE = 6
_DIGEST_DIGITS = 8
_MOST_CHANGES = 2
"""Changed values that a footer lists; more would not fit its line."""
OUTLINE: dict[str, Any] = {"edgecolor": BLACK, "linewidth": 0.4}
"""Outline of bars that touch, to separate them in greyscale."""


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


def new_figure(width_in: float = 7.5, height_in: float = 4.2, notes: str = "") -> Figure:
    """Create a figure with a strip at the bottom for notes and the footer.

    Args:
        width_in: width in inches; by default the text width of a printed page.
        height_in: height in inches without the strip.
        notes: lines of small text below the axes.
    """
    from matplotlib.figure import Figure

    strip_in = _FOOTER_IN + _NOTE_IN * len(notes.splitlines())
    figure = Figure(figsize=(width_in, height_in + strip_in), layout="constrained")
    _reserve_strip(figure, strip_in / (height_in + strip_in))
    if notes:
        x, y = _LEFT_IN / width_in, _FOOTER_IN / (height_in + strip_in)
        figure.text(x, y, notes, fontsize=SMALL, linespacing=1.3, va="bottom")
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


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Put the legend of an axes below all axes."""
    from matplotlib.lines import Line2D

    handles, _ = axes.get_legend_handles_labels()
    handles.sort(key=lambda handle: isinstance(handle, Line2D))  # bars first, then marks
    legend_of(figure, handles, columns)


def legend_of(figure: Figure, handles: list[Artist], columns: int) -> None:
    """Put a legend of these handles below all axes, above the notes."""
    # matplotlib puts an "outside" legend at the figure's edge, where it would cover the notes.
    engine = figure.get_layout_engine()
    _, strip, _, height = engine.get()["rect"] if engine else (0, 0, 1, 1)
    box = 0, strip, 1, height
    legend = figure.legend(handles=handles, loc="lower center", bbox_to_anchor=box, ncols=columns)
    _reserve_strip(figure, strip + legend.get_window_extent().height / figure.bbox.height)


def _reserve_strip(figure: Figure, share: float) -> None:
    """Keep this share of the figure's height free of axes, at the bottom."""
    figure.get_layout_engine().set(rect=(0, share, 1, 1 - share))  # type: ignore[union-attr, call-arg]


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


def write_figure(draw: Callable[[], Figure], path: Path, footer: str) -> tuple[Path, ...]:
    """Write `path.png` and `path.svg` in our style; equal data give identical files.

    Args:
        draw: creates the figure by `new_figure` or `new_axes`.
        path: the path without the suffix.
        footer: small text at the bottom: the figure's origin.

    Raises:
        InputError: matplotlib is not installed; the folder cannot be written to.
    """
    require("drawing pictures", "matplotlib")
    with styled(), writing_to(path.parent, "pictures"):
        figure = draw()
        add_footer(figure, footer)
        return save(figure, path)


def add_footer(figure: Figure, text: str) -> None:
    """Write the footer into the strip that `new_figure` leaves free, cut to the figure's width."""
    width_in, height_in = figure.get_size_inches()
    most = int((width_in - 2 * _LEFT_IN) * 72 / (0.56 * _FOOTER_SIZE))
    line = text if len(text) <= most else f"{text[: most - 1]}…"
    x, y = _LEFT_IN / width_in, 0.05 / height_in
    figure.text(x, y, line, fontsize=_FOOTER_SIZE, color="#555555", va="bottom")


def save(figure: Figure, path: Path) -> tuple[Path, ...]:
    """Write PNG and SVG without metadata, because equal figures must give identical files."""
    written = tuple(path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg"))
    for target in written:
        _save_file(figure, target)
    return written


def check_picture_file(file: Path) -> None:
    """Check that pictures can be drawn and that a file's suffix names a known format.

    Raises:
        InputError: matplotlib is not installed (E701), or the suffix is unknown (E117).
    """
    require("drawing pictures", "matplotlib")
    check_suffix(file, [f".{kind}" for kind in _NO_DATE], "pictures")


def write_picture(draw: Callable[[], Figure], file: Path, footer: str) -> None:
    """Write a picture in the format that the file's suffix names, and replace an older file.

    `draw` and `footer` are as for `write_figure`.

    Raises:
        InputError: as `check_picture_file`, or the file cannot be written (E113).
    """
    check_picture_file(file)
    with styled(), writing_to(file, "a picture"):
        figure = draw()
        add_footer(figure, footer)
        _save_file(figure, file)


def _save_file(figure: Figure, file: Path) -> None:
    metadata = _NO_DATE[file.suffix.removeprefix(".").lower()]
    with replacing(file) as unfinished:
        figure.savefig(unfinished, dpi=_DOTS_PER_INCH, metadata=metadata)
