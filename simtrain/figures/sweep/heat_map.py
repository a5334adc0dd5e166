"""A heat map: the best over everything else, for each combination of two axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simtrain.figures import style
from simtrain.figures.sweep.panels import panels_of
from simtrain.figures.sweep.quantities import label_of, shown, title_of
from simtrain.figures.sweep.results import (
    DOES_NOT_FIT,
    LARGER_IS_BETTER,
    Cell,
    Results,
    best,
    check_name,
    effect,
    short_words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_WORDS = 160
"""Cells of a panel up to which each is written into."""
_ROW_IN, _PANEL_IN = 0.32, 1.0


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Two axes of a sweep and the column that is compared."""

    results: Results
    x: str
    y: str
    value: str

    def cells(self, panel: Cell) -> dict[tuple[Cell, Cell], float]:
        """The best of a panel at each (x, y) where something ran."""
        rows = self.results.of_panel(panel, self.results.ran)
        return {(x, y): value for (x, y), value in best(rows, [self.x, self.y], self.value).items()}

    def reasons(self, panel: Cell) -> dict[tuple[Cell, Cell], str]:
        """Why nothing ran at an (x, y): too big for memory, or else the first rule broken."""
        rows = self.results.of_panel(panel, self.results.table)
        found = rows.group_by([self.x, self.y, "status"]).aggregate([("rule", "min")])
        words: dict[tuple[Cell, Cell], str] = {}
        for row in found.to_pylist():
            place = row[self.x], row[self.y]
            if row["status"] == DOES_NOT_FIT:
                words[place] = "too big"
            elif place not in words:
                words[place] = row["rule_min"] or ""
        return words


def heat_map(results: Results, value: str, x: str | None, y: str | None) -> HeatMap | None:
    """The heat map of two axes; those not named are the axes that change the best most.

    None where fewer than two axes vary.

    Raises:
        InputError: E864, an axis that the results do not have, or that does not vary.
    """
    names = results.varying()
    if x is not None:
        check_name(results, x, names, "--x")
    if y is not None:
        check_name(results, y, [name for name in names if name != x], "--y")
    others = [name for name in names if name not in (x, y)]
    others.sort(key=lambda name: -effect(results, name, value))
    wanted = [name for name in (x, y) if name is not None]
    chosen = [*wanted, *others][:2]
    if len(chosen) < 2:
        return None
    if x is None and y is None:
        # The longer axis lies down, where there is more room.
        chosen.sort(key=lambda name: -len(results.values(name)))
    across, up = (chosen[1], chosen[0]) if x is None and y is not None else chosen
    return HeatMap(results, across, up, value)


def draw_heat_map(picture: HeatMap) -> Figure:
    """Colours are shares of the best of the panel."""
    results = picture.results
    rows = len(results.values(picture.y))
    figure, all_axes = panels_of(results, _PANEL_IN + _ROW_IN * rows)
    shares = {panel: _shares(picture, panel) for panel in results.panels}
    least = min(share for one in shares.values() for share in one.values())
    image: Any = None
    for axes, panel in zip(all_axes, results.panels, strict=True):
        image = _draw_panel(axes, picture, panel, shares[panel], min(least, 0.99))
    figure.suptitle(f"{title_of(picture.value)}, best over everything else", fontsize=10)
    figure.colorbar(image, ax=list(all_axes), label="share of the best", shrink=0.9, aspect=30)
    return figure


def _shares(picture: HeatMap, panel: Cell) -> dict[tuple[Cell, Cell], float]:
    """How near to the best of the panel each cell is: 1 is the best."""
    cells = picture.cells(panel)
    if not cells:
        return {}
    if picture.value in LARGER_IS_BETTER:
        top = max(cells.values())
        return {place: value / top for place, value in cells.items()}
    top = min(cells.values())
    return {place: top / value if value else 1.0 for place, value in cells.items()}


def _draw_panel(
    axes: Axes,
    picture: HeatMap,
    panel: Cell,
    shares: Mapping[tuple[Cell, Cell], float],
    least: float,
) -> Any:
    across, up = picture.results.values(picture.x), picture.results.values(picture.y)
    grid = [[shares.get((x, y), float("nan")) for x in across] for y in up]
    image = axes.imshow(grid, cmap="cividis", vmin=least, vmax=1, aspect="auto", origin="lower")
    _label(axes, picture, across, up)
    axes.set_title(short_words(panel), fontsize=9)
    if len(across) * len(up) <= _MOST_WORDS:
        _write(axes, picture, panel, shares, (least + 1) / 2)
    return image


def _label(axes: Axes, picture: HeatMap, across: Sequence[Cell], up: Sequence[Cell]) -> None:
    axes.set_xticks(range(len(across)), [short_words(value) for value in across])
    axes.set_yticks(range(len(up)), [short_words(value) for value in up])
    axes.tick_params(length=0, labelsize=8)
    axes.set(xlabel=label_of(picture.x), ylabel=label_of(picture.y))
    axes.spines[:].set_visible(False)


def _write(
    axes: Axes,
    picture: HeatMap,
    panel: Cell,
    shares: Mapping[tuple[Cell, Cell], float],
    middle: float,
) -> None:
    """The value into each cell, or why there is none."""
    cells, reasons = picture.cells(panel), picture.reasons(panel)
    across, up = picture.results.values(picture.x), picture.results.values(picture.y)
    for column, x in enumerate(across):
        for row, y in enumerate(up):
            if (place := (x, y)) in cells:
                words = shown(picture.value, cells[place])
                colour = "black" if shares[place] > middle else "white"
            else:
                words, colour = reasons.get(place, ""), "#666666"
            weight = "bold" if shares.get(place) == 1 else "normal"
            text = axes.text(column, row, words, color=colour, fontsize=style.SMALL, weight=weight)
            text.set(ha="center", va="center")
