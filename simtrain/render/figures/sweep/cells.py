"""The grid of a heat map: coloured cells, their text, and the labels of both axes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simtrain.render.figures import style
from simtrain.render.figures.labels import wrap
from simtrain.render.figures.sweep.results import Cell, short_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_CELLS = 160
"""Cells have text up to this number of cells in a panel."""
_FIGURE_POINTS, _LABEL_POINTS = 460, 24
"""Estimated width of all panels together, and of the vertical axis's name, in points."""
_TICK_SIZE, _DETAIL_SIZE = 8, 5.5
_CHARACTER = 0.58
"""Estimated mean width of a character as a share of the font size."""
_DARK = "#111111"
"""Text on light cells; pages draw black in the colour of their theme."""
_Y_LABEL_CHARACTERS, _DETAIL_LINES = 18, 2

Place = tuple[Cell, Cell]
"""Values of the horizontal and the vertical axis: a place in the grid."""
AxisPair = tuple[Sequence[Cell], Sequence[Cell]]


def draw_cells(
    axes: Axes,
    values: AxisPair,
    shares: Mapping[Place, float],
    texts: Mapping[Place, tuple[str, str]],
    least: float,
    columns: int,
) -> Any:
    """Draw the cells of one panel and return the image, for a colour bar.

    Args:
        axes: an empty axes.
        values: the values of the horizontal and the vertical axis.
        shares: the colour of each cell, from `least` to 1.
        texts: the text of each cell, and the smaller text below it.
        least: the smallest share of all panels.
        columns: panels side by side in the figure.
    """
    across, up = values
    grid = [[shares.get((x, y), float("nan")) for x in across] for y in up]
    image = axes.imshow(grid, cmap="cividis", vmin=least, vmax=1, aspect="auto", origin="lower")
    _label(axes, across, up, _cell_points(values, columns))
    if len(across) * len(up) <= _MOST_CELLS:
        for place, text in texts.items():
            at = across.index(place[0]), up.index(place[1])
            _write(axes, at, text, shares.get(place), (least + 1) / 2)
    return image


def _cell_points(values: AxisPair, columns: int) -> float:
    """Estimate the width of a cell in points."""
    across, up = values
    longest = max(len(line) for value in up for line in _vertical_label(value).splitlines())
    label_points = _LABEL_POINTS + _CHARACTER * _TICK_SIZE * longest
    return (_FIGURE_POINTS / columns - label_points) / len(across)


def wrapped(details: Collection[str], values: AxisPair, columns: int) -> list[str]:
    """Wrap details to the width of a cell, or return an empty list if one does not fit.

    Args:
        details: one text per cell.
        values: the values of the horizontal and the vertical axis.
        columns: panels side by side in the figure.
    """
    most = int(_cell_points(values, columns) / (_CHARACTER * _DETAIL_SIZE))
    cells = len(values[0]) * len(values[1])
    wrapped = [wrap(detail, most) for detail in details]
    lines = [detail.splitlines() for detail in wrapped]
    fit = all(
        len(text) <= _DETAIL_LINES and all(len(line) <= most for line in text) for text in lines
    )
    return wrapped if fit and cells <= _MOST_CELLS else []


def _label(axes: Axes, across: Sequence[Cell], up: Sequence[Cell], cell_points: float) -> None:
    """Label both axes; horizontal labels wider than a cell are wrapped or rotated."""
    names, rotated = _horizontal_labels(across, cell_points)
    axes.set_xticks(range(len(across)), names, rotation=90 if rotated else 0)
    axes.set_yticks(range(len(up)), [_vertical_label(value) for value in up])
    axes.tick_params(length=0, labelsize=_TICK_SIZE)
    axes.spines[:].set_visible(False)


def _vertical_label(value: Cell) -> str:
    return wrap(short_words(value), _Y_LABEL_CHARACTERS)


def _horizontal_labels(values: Sequence[Cell], cell_points: float) -> tuple[list[str], bool]:
    """Return the labels, wrapped to a cell's width if possible, and whether to rotate them."""
    most = int(cell_points / (_CHARACTER * _TICK_SIZE)) - 1
    names = [wrap(short_words(value), most) for value in values]
    if any(len(line) > most for name in names for line in name.splitlines()):
        return [short_words(value) for value in values], True
    return names, False


def label_height_in(values: AxisPair, columns: int) -> float:
    """Return the height of the horizontal axis's labels in inches."""
    names, rotated = _horizontal_labels(values[0], _cell_points(values, columns))
    if rotated:
        return _CHARACTER * _TICK_SIZE * max(map(len, names)) / 72
    return 1.2 * _TICK_SIZE * max(len(name.splitlines()) for name in names) / 72


def _write(
    axes: Axes,
    at: tuple[int, int],
    texts: tuple[str, str],
    share: float | None,
    middle: float,
) -> None:
    """Write a cell's text and the detail below; the best cell's text is bold."""
    text, detail = texts
    colour = "#666666" if share is None else _DARK if share > middle else "white"
    weight = "bold" if share == 1 else "normal"
    how: dict[str, Any] = {"color": colour, "ha": "center", "textcoords": "offset points"}
    axes.annotate(
        text,
        at,
        (0, 1 if detail else 0),
        fontsize=style.SMALL,
        weight=weight,
        va="bottom" if detail else "center",
        **how,
    )
    if detail:
        axes.annotate(detail, at, (0, 0), fontsize=_DETAIL_SIZE, va="top", linespacing=1, **how)
