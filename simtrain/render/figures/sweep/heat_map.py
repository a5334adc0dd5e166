"""Heat map: the best result at each combination of two axes, and the values that achieve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.strict_yaml import as_scalar
from simtrain.errors import InputError, Location
from simtrain.render.figures import style
from simtrain.render.figures.labels import wrap
from simtrain.render.figures.sweep.cells import Place, draw_cells, label_height_in, wrapped
from simtrain.render.figures.sweep.panels import COLUMNS, panels_of
from simtrain.render.figures.sweep.quantities import label_of, shown, title_of
from simtrain.render.figures.sweep.results import (
    DOES_NOT_FIT,
    LARGER_IS_BETTER,
    Cell,
    Results,
    check_name,
    effect,
    group,
    short_words,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ILLEGAL, TOO_BIG, ABSENT = "illegal", "too big", "not in the sweep"
_MOST_RULES, _NOTE_CHARACTERS = 4, 125


@dataclass(frozen=True)
class HeatMap(PlainData):
    """A heat map of one column over two axes of a sweep.

    Args:
        results: the sweep's results.
        x, y: names of the axes.
        value: the column.
    """

    json_fields: ClassVar = keys("x y value best_over=folded panels")

    results: Results
    x: str
    y: str
    value: str

    @cached_property
    def folded(self) -> list[str]:
        """The other axes that vary independently; each cell shows the best over them."""
        taken, names = [self.x, self.y], []
        for name in self.results.varying():
            if name not in taken:
                before = self.results.combinations(*taken)
                if self.results.combinations(*taken, name) > before:
                    names.append(name)
                    taken.append(name)
        return names

    def best(self, panel: Cell) -> dict[Place, dict[str, Any]]:
        """The best point that ran at each (x, y): its value, index, and folded axes, by column."""
        rows, names = self.results.ranked(panel, self.value), [self.value, "index", *self.folded]
        first = group(rows, [self.x, self.y]).aggregate([(name, "first") for name in names])
        cells = {
            (row[self.x], row[self.y]): {name: row[f"{name}_first"] for name in names}
            for row in first.to_pylist()
        }
        ran = self.results.of_panel(panel, self.results.ran)
        in_order = group(ran, [self.x, self.y]).aggregate([]).to_pylist()
        return {(row[self.x], row[self.y]): cells[row[self.x], row[self.y]] for row in in_order}

    def reasons(self, panel: Cell) -> dict[Place, str]:
        """Why no point ran at (x, y): too big for memory if any point is, otherwise illegal."""
        rows = self.results.of_panel(panel, self.results.table)
        statuses = group(rows, [self.x, self.y, "status"]).aggregate([])
        words: dict[Place, str] = {}
        for row in statuses.to_pylist():
            place = row[self.x], row[self.y]
            if row["status"] == DOES_NOT_FIT or place not in words:
                words[place] = TOO_BIG if row["status"] == DOES_NOT_FIT else ILLEGAL
        return words

    @property
    def panels(self) -> dict[str, Any]:
        """The cells of the panels in full precision, row by row from the top.

        A cell has the values of both axes, and the value, index and folded axes of its best point,
        or the reason why no point ran.
        """
        return {as_scalar(panel): self._cells(panel) for panel in self.results.panels}

    def _cells(self, panel: Cell) -> list[dict[str, Any]]:
        best, reasons = self.best(panel), self.reasons(panel)
        cells: list[dict[str, Any]] = []
        for y in reversed(self.results.values(self.y)):
            for x in self.results.values(self.x):
                cell: dict[str, Any] = {"x": x, "y": y}
                if found_best := best.get((x, y)):
                    cell |= {"value": found_best.pop(self.value), **found_best}
                else:
                    cell |= {"reason": reasons.get((x, y), ABSENT)}
                cells.append(cell)
        return cells

    def rules(self) -> list[str]:
        """Codes of the rules that illegal points break."""
        return sorted({rule for rule in self.results.table["rule"].unique().to_pylist() if rule})


def heat_map(results: Results, value: str, x: str | None, y: str | None) -> HeatMap | None:
    """Choose the axes of a heat map.

    Axes with named values come first, because the sweep file defines them for its question. Then
    come the axes that change the best result most. The second axis is not one that the first
    determines, unless no other axis varies.

    Returns None if fewer than two axes vary.

    Raises:
        InputError: E864, an axis does not exist or does not vary.
    """
    names = results.varying()
    if x is not None:
        check_name(results, x, names, "--x")
    if y is not None:
        if y == x:
            fix = "write another axis, or remove one of them: simtrain then chooses it"
            raise InputError.of("E864", f"--x and --y are both {x}", Location("--y"), fix)
        check_name(results, y, names, "--y")
    others = [name for name in names if name not in (x, y)]
    named = results.header.named_axes
    others.sort(key=lambda name: (name not in named, -effect(results, name, value)))
    wanted = [name for name in (x, y) if name is not None]
    chosen = wanted or others[:1]
    others = [name for name in others if name not in chosen]
    others.sort(key=lambda name: _is_determined(results, chosen, name))
    chosen = [*chosen, *others][:2]
    if len(chosen) < 2:
        return None
    if x is None and y is None:
        # The axis with more values is horizontal, unless its labels take more room there.
        columns = min(len(results.panels), COLUMNS)
        first, second = (results.values(name) for name in chosen)
        heights = {
            chosen[0]: label_height_in((first, second), columns),
            chosen[1]: label_height_in((second, first), columns),
        }
        chosen.sort(key=lambda name: (heights[name], -len(results.values(name))))
    across, up = (chosen[1], chosen[0]) if x is None and y is not None else chosen
    return HeatMap(results, across, up, value)


def _is_determined(results: Results, chosen: Sequence[str], name: str) -> bool:
    """Whether one of two axes determines the value of the other."""
    most = max(len(results.values(axis)) for axis in (*chosen, name))
    return len(chosen) == 1 and results.combinations(*chosen, name) <= most


@style.picture
def draw_heat_map(picture: HeatMap) -> Figure:
    """Draw all panels; colours show the ratio to the panel's best result."""
    results = picture.results
    best = {panel: picture.best(panel) for panel in results.panels}
    values = {
        panel: {place: row[picture.value] for place, row in cells.items()}
        for panel, cells in best.items()
    }
    shares = {panel: _shares(picture.value, cells) for panel, cells in values.items()}
    reasons = {panel: picture.reasons(panel) for panel in results.panels}
    least = min(share for of_panel in shares.values() for share in of_panel.values())
    choices, described = _choices(picture, best)
    across, up = results.values(picture.x), results.values(picture.y)
    columns = min(len(results.panels), COLUMNS)
    notes = "\n".join([*_fold_notes(described), *_reason_notes(picture, values, reasons)])
    row_in = 0.45 if choices else 0.32
    height_in = 0.8 + row_in * len(up) + label_height_in((across, up), columns)
    figure, all_axes = panels_of(results, height_in, notes)
    image: Any = None
    for axes, panel in zip(all_axes, results.panels, strict=True):
        texts = {
            place: (shown(picture.value, value), choices.get((panel, *place), ""))
            for place, value in values[panel].items()
        }
        texts |= {
            place: (reason, "") for place, reason in reasons[panel].items() if place not in texts
        }
        image = draw_cells(axes, (across, up), shares[panel], texts, min(least, 0.99), columns)
        axes.set(xlabel=label_of(picture.x), ylabel=label_of(picture.y))
        axes.set_title(short_words(panel), fontsize=9)
    better = "higher" if picture.value in LARGER_IS_BETTER else "lower"
    title = f"{results.name}: {title_of(picture.value)} ({better} is better)"
    figure.suptitle(title, fontsize=10)
    share = "share of the panel's best" if len(results.panels) > 1 else "share of the best"
    figure.colorbar(image, ax=list(all_axes), label=share, shrink=0.9, aspect=30)
    return figure


def _shares(value: str, cells: Mapping[Place, float]) -> dict[Place, float]:
    """Return the ratio of each cell to the best cell of the panel, at most 1."""
    if not cells:
        return {}
    if value in LARGER_IS_BETTER:
        top = max(cells.values())
        return {place: value / top for place, value in cells.items()}
    top = min(cells.values())
    return {place: top / value if value else 1.0 for place, value in cells.items()}


def _choices(
    picture: HeatMap, best: Mapping[Cell, Mapping[Place, dict[str, Any]]]
) -> tuple[dict[tuple[Cell, Cell, Cell], str], dict[str, str]]:
    """Describe the folded axes' values at the best point of each cell.

    Returns the text by (panel, x, y), and the note's description of each folded axis. An axis with
    the same value at every best point appears in the note only.
    """
    chosen = {(panel, *at): cell for panel, cells in best.items() for at, cell in cells.items()}
    values = {
        name: {short_words(cell[name]) for cell in chosen.values()} for name in picture.folded
    }
    described = {
        name: f"always {next(iter(choices))}" if len(choices) == 1 else "value not shown"
        for name, choices in values.items()
    }
    differing = [name for name, choices in values.items() if len(choices) > 1]
    axes = picture.results.values(picture.x), picture.results.values(picture.y)
    columns = min(len(picture.results.panels), COLUMNS)
    while differing:
        details = [
            ", ".join(_choice(name, cell[name]) for name in differing) for cell in chosen.values()
        ]
        if lines := wrapped(details, axes, columns):
            described |= dict.fromkeys(differing, "named")
            return dict(zip(chosen, lines, strict=True)), described
        differing.pop()
    return {}, described


def _choice(axis: str, value: Cell) -> str:
    words = short_words(value)
    if isinstance(value, str):
        return words
    return f"{axis.rpartition('.')[2].replace('_', ' ')} {words}"


def _fold_notes(described: Mapping[str, str]) -> list[str]:
    """Name the axes over which each cell shows the best result."""
    if not described:
        return []
    axes = ", ".join(f"{name} ({how})" for name, how in described.items())
    return wrap(f"Each cell has the best over {axes}.", _NOTE_CHARACTERS).splitlines()


def _reason_notes(
    picture: HeatMap,
    values: Mapping[Cell, Mapping[Place, float]],
    reasons: Mapping[Cell, Mapping[Place, str]],
) -> list[str]:
    """Explain cells without a value: their words, and empty cells."""
    results = picture.results
    words = {
        reason
        for panel in results.panels
        for place, reason in reasons[panel].items()
        if place not in values[panel]
    }
    lines = []
    if ILLEGAL in words:
        rules = picture.rules()
        codes = ", ".join(rules[:_MOST_RULES]) + (", …" if len(rules) > _MOST_RULES else "")
        broken = f"breaks {'rule' if len(rules) == 1 else 'rules'} {codes}" if codes else "illegal"
        lines.append(f"{ILLEGAL}: {broken} (simtrain explain CODE)")
    if TOO_BIG in words:
        lines.append(f"{TOO_BIG}: does not fit in the GPU's memory")
    size = len(results.values(picture.x)) * len(results.values(picture.y))
    if any(len(reasons[panel]) < size for panel in results.panels):
        lines.append("empty: not in the sweep")
    return ["; ".join(lines)] if lines else []
