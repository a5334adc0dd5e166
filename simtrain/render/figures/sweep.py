"""Figures of a sweep: the best value over two axes, the front of time and memory, and scaling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.base.strict_yaml import as_scalar
from simtrain.base.values import dataclass
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.render.figures import style
from simtrain.render.figures.style import footer, set_logarithmic, with_changes
from simtrain.studies.sweep.grid import MORE_IS_BETTER, REPORTED
from simtrain.studies.sweep.run import SweepFolder, query
from simtrain.units import GIB, four_digits
from simtrain.views.kinds import GIB as GIBS
from simtrain.views.kinds import SECONDS, TEXT
from simtrain.views.view import Column, Paragraphs, Table, View
from simtrain.views.view import Row as TableRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
_COLUMNS, _MOST_LETTERS = 2, 40
_TOO_BIG = "too big"
_TITLES = {
    "heat_map": "The best value over two axes",
    "pareto": "Front of time and memory",
    "scaling": "Best throughput by number of GPUs",
}


@dataclass(frozen=True)
class SweepResults:
    """Rows of a sweep by point. A panel shows one base scenario: models are not comparable."""

    folder: Path
    header: Mapping[str, Any]
    rows: list[Row]

    @classmethod
    def of(cls, folder: Path) -> SweepResults:
        """Read the results of a finished or running sweep (E820, E863)."""
        rows = query(folder, 'select * from results order by "index"').records()
        if not any(row["status"] == "ok" for row in rows):
            fix = "choose values that are legal and fit; the column rule names the broken rules"
            raise InputError.of("E863", "no point of this sweep ran", Location(str(folder)), fix)
        return cls(folder, SweepFolder(folder).header or {}, rows)

    @cached_property
    def axes(self) -> list[str]:
        """Axes with several values: those with labels first, then those that change most."""
        names, labelled = [*self.rows[0]], self.header.get("file", {}).get("axes", {})
        axes = names[names.index("index") + 1 : names.index("status")]
        varying = [name for name in axes if len(self.values(name)) > 1 and name != "base"]

        def rank(name: str) -> tuple[bool, float]:
            best = best_by(self.rows, [name], self.objective).values()
            values = [abs(row[self.objective] or 0) for row in best if row["status"] == "ok"]
            keys = {*labelled.get(name, ())} if isinstance(labelled.get(name), dict) else set()
            has_labels = bool(keys - {"range", "powers_of_two"})
            return not has_labels, min(values) / (max(values) or 1)

        return sorted(varying, key=rank)

    @property
    def objective(self) -> str:
        return str(self.header.get("objective", "tokens_per_s"))

    @property
    def panels(self) -> dict[str, list[Row]]:
        panels: dict[str, list[Row]] = {}
        for row in self.rows:
            panels.setdefault(as_scalar(row.get("base", "")), []).append(row)
        return panels

    def values(self, axis: str) -> list[Any]:
        """Values of an axis: numbers ascending, text in the grid's order."""
        values = [*dict.fromkeys(row[axis] for row in self.rows)]
        if any(isinstance(value, str) for value in values):
            return values
        return sorted(values, key=lambda value: (value is not None, value or 0))

    def column(self, name: str, known: Sequence[str], option: str) -> str:
        """Return a column by its name, or the first one (E864)."""
        if name and name not in known:
            fix = f"{did_you_mean(name, known)}Write one of {', '.join(known)}"
            message = f'the results have no "{name}" that varies'
            raise InputError.of("E864", message, Location(option), fix)
        return name or known[0]


@dataclass(frozen=True)
class SweepPictures(PlainData):
    """The pictures of a sweep.

    Args:
        results: the results.
        value: the column that the heat map shows.
        x, y: its axes; "" if fewer than two vary, so that there is none.
        files: what was written.
    """

    json_fields: ClassVar = keys("pictures=files value x y fronts scaling")

    results: SweepResults
    value: str
    x: str
    y: str
    files: tuple[Path, ...] = ()

    @classmethod
    def of(
        cls, results: SweepResults, value: str | None = None, x: str = "", y: str = ""
    ) -> SweepPictures:
        """Choose a column and two axes (E864)."""
        columns = [name for name in results.rows[0] if name in {*REPORTED, results.objective}]
        column = results.column(value or results.objective, columns, "--value")
        if len(results.axes) < 2 and not (x or y):
            return cls(results, column, "", "")
        left = [axis for axis in results.axes if axis != y] or [""]
        across = results.column(x, left, "--axes")
        left = [axis for axis in results.axes if axis != across] or [""]
        up = results.column(y, left, "--axes")
        if not (x or y) and _longest(results.values(across)) > _longest(results.values(up)):
            across, up = up, across  # long labels have more room on the left
        return cls(results, column, across, up)

    @property
    def fronts(self) -> dict[str, list[Row]]:
        """The points of each panel that no other one beats in both time and memory."""
        return {name: front(rows) for name, rows in self.results.panels.items()}

    @property
    def scaling(self) -> dict[str, dict[int, float]]:
        return {name: scaling(rows) for name, rows in self.results.panels.items()}

    def figures(self) -> dict[str, Figure]:
        """Draw the pictures that have data, by name."""
        drawings: dict[str, Callable[[Axes, list[Row]], None]] = {}
        if self.x and self.y:
            drawings["heat_map"] = self._draw_heat_map
        drawings["pareto"] = _draw_front
        if any(len(curve) > 1 for curve in self.scaling.values()):
            drawings["scaling"] = _draw_scaling
        return {name: self._panels(name, draw) for name, draw in drawings.items()}

    @style.picture
    def _panels(self, title: str, draw: Callable[[Axes, list[Row]], None]) -> Figure:
        panels, rows = self.results.panels, len(self.results.values(self.y)) if self.y else 8
        num_rows = -(-len(panels) // _COLUMNS)
        figure = style.new_figure(9, num_rows * max(3.0, 0.3 * rows + 1.2))
        grid = figure.subplots(num_rows, min(len(panels), _COLUMNS), squeeze=False)
        for axes, (name, of_panel) in zip(grid.flat, panels.items(), strict=False):
            draw(axes, of_panel)
            axes.set_title(name, fontsize=9)
        for axes in [*grid.flat][len(panels) :]:
            axes.set_visible(False)
        better = "higher" if self.value in MORE_IS_BETTER else "lower"
        words = f": best {self.value}, {better} is better" if title == "heat_map" else ""
        subject = self.results.header.get("name")
        figure.suptitle(f"{subject}. {_TITLES[title]}{words}", fontsize=10)
        return figure

    def _draw_heat_map(self, axes: Axes, rows: list[Row]) -> None:
        """Draw the best value at each combination of two axes, or why there is none."""
        import numpy as np

        across, up = self.results.values(self.x), self.results.values(self.y)
        shares = np.full((len(up), len(across)), np.nan)
        cells = best_by(rows, [self.x, self.y], self.value)
        ran = [row[self.value] for row in cells.values() if row["status"] == "ok"]
        top = (max if self.value in MORE_IS_BETTER else min)(ran, default=1)
        for (x, y), row in cells.items():
            place, value = (up.index(y), across.index(x)), row[self.value]
            text, weight = str(row["rule"] or _TOO_BIG), "normal"
            if row["status"] == "ok" and value is not None:
                text, weight = _short(self.value, value), "bold" if value == top else "normal"
                low, high = sorted((value, top))
                shares[place] = low / high if high else 1.0
            axes.text(place[1], place[0], text, ha="center", va="center", fontsize=7, weight=weight)
        axes.imshow(shares, aspect="auto", cmap="viridis", alpha=0.5, origin="lower", vmax=1)
        axes.set_xticks(range(len(across)), [*map(as_scalar, across)], **_turned(across))
        axes.set_yticks(range(len(up)), [*map(as_scalar, up)])
        axes.set(xlabel=self.x, ylabel=self.y)


def _turned(labels: Sequence[Any]) -> Mapping[str, Any]:
    return {"rotation": 90} if _longest(labels) * len(labels) > _MOST_LETTERS else {}


def _longest(labels: Sequence[Any]) -> int:
    return max(len(as_scalar(label)) for label in labels)


def _short(column: str, value: float) -> str:
    if column in ("mfu", "hfu"):
        return f"{value:.1%}"
    return four_digits(value / GIB if column.endswith("_bytes") else value)


def best_by(rows: Sequence[Row], axes: Sequence[str], value: str) -> dict[tuple[Any, ...], Row]:
    """Return the best row for each combination of axes; if none ran, one that says why not."""
    sign = -1 if value in MORE_IS_BETTER else 1
    best: dict[tuple[Any, ...], tuple[Any, Row]] = {}
    for row in rows:
        has_value = row["status"] == "ok" and row[value] is not None
        rank = (0, sign * row[value]) if has_value else (1 + (row["status"] == "illegal"), 0)
        place = tuple(row[axis] for axis in axes)
        if place not in best or rank < best[place][0]:
            best[place] = rank, row
    return {place: row for place, (_, row) in best.items()}


def front(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that no other one beats in both time and memory."""
    kept: list[Row] = []
    ran = (row for row in rows if row["status"] == "ok")
    for row in sorted(ran, key=lambda row: (row["iteration_time_s"], row["peak_bytes"])):
        if not kept or row["peak_bytes"] < kept[-1]["peak_bytes"]:
            kept.append(row)
    return kept


def scaling(rows: Sequence[Row]) -> dict[int, float]:
    """Return the best tokens per second by number of GPUs."""
    ran = [row for row in rows if row["status"] == "ok"]
    best = best_by(ran, ["num_gpus"], "tokens_per_s")
    return {num_gpus: best[num_gpus,]["tokens_per_s"] for (num_gpus,) in sorted(best)}


def _draw_front(axes: Axes, rows: list[Row]) -> None:
    ran, best = [row for row in rows if row["status"] == "ok"], front(rows)
    for points, size, colour in ((ran, 8, "0.6"), (best, 24, style.BLUE)):
        times_s = [row["iteration_time_s"] for row in points]
        axes.scatter(times_s, [row["peak_bytes"] / GIB for row in points], size, colour)
    axes.set(xlabel="iteration time, s", ylabel="peak memory, GiB")


def _draw_scaling(axes: Axes, rows: list[Row]) -> None:
    if curve := scaling(rows):
        gpus, rates = [*curve], [*curve.values()]
        linear = [rates[0] * number / gpus[0] for number in gpus]
        axes.plot(gpus, rates, "o-", label="best")
        axes.plot(gpus, linear, "--", c="0.6", label="linear")
        set_logarithmic(axes.xaxis, gpus)
        set_logarithmic(axes.yaxis, [*rates, *linear])
        axes.set_xticks(gpus, map(str, gpus))
        axes.legend()
    axes.set(xlabel="GPUs", ylabel="tokens per second")


def write_plots(pictures: SweepPictures, folder: Path) -> SweepPictures:
    """Write the pictures as PNG and SVG to an existing folder."""
    header = pictures.results.header
    subject = with_changes(f"sweep {header.get('name')}", header.get("overrides", ()))
    version = header.get("versions", {}).get("simtrain", "")
    origin = footer(subject, header.get("profiles", {}), version)
    files: list[Path] = []
    for name, figure in pictures.figures().items():
        files += style.write_figure(figure, folder / name, origin)
    return SweepPictures(pictures.results, pictures.value, pictures.x, pictures.y, tuple(files))


def plots_view(pictures: SweepPictures) -> View:
    """List the front of each panel, and the files."""
    axes = pictures.results.axes
    columns = (
        Column("panel", "", TEXT),
        Column("peak_bytes", "GiB", GIBS),
        Column("iteration_time_s", "time", SECONDS),
        Column("where", "where", TEXT),
    )
    rows = [
        TableRow((name, row["peak_bytes"], row["iteration_time_s"], _point(row, axes)))
        for name, rows in pictures.fronts.items()
        for row in rows
    ]
    table = Table("front", _TITLES["pareto"], columns, rows)
    return View([table, Paragraphs([*map(str, pictures.files)], style=None)])


def _point(row: Row, axes: Sequence[str]) -> str:
    return ", ".join(f"{name}: {as_scalar(row[name])}" for name in axes)
