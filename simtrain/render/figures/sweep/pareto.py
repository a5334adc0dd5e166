"""Pareto front: the points that no other point beats in both time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simtrain.base.strict_yaml import as_scalar
from simtrain.render.figures import style
from simtrain.render.figures.labels import separate_labels, set_logarithmic
from simtrain.render.figures.sweep.panels import panels_of
from simtrain.render.figures.sweep.results import Cell, Results, short_words
from simtrain.units import GIB

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

_NEEDED = ("peak_bytes", "iteration_time_s", "tokens_per_s", "num_gpus")
_MANY_POINTS = 2000
_MOST_NUMBERED = 12
_MOST_KEY_LINES, _KEY_CHARACTERS = 16, 125
_LOGARITHMIC = 8.0
"""The time axis is logarithmic above this ratio of the slowest to the fastest point."""
_ONE_SIZE = 0.005
"""Points count as equally large up to this relative difference in memory."""
_NEAR = 1.5
"""A capacity is drawn if it is below this multiple of the largest peak."""
_CAPACITY = "capacity_bytes"
_FRONT: dict[str, Any] = {"color": style.BLUE, "linewidth": 1, "markersize": 4}
_SAME = 1e-9
"""Relative rounding error of tokens per iteration, which are computed from time and rate."""


@dataclass(frozen=True, slots=True)
class Pareto:
    """Points that ran.

    Args:
        results: the sweep's results.
        rows: a row per point, with a column `time`.
        unit: unit of `time`.
    """

    results: Results
    rows: pyarrow.Table
    unit: str

    def of_panel(self, panel: Cell) -> pyarrow.Table:
        """Select the rows of a panel."""
        return self.results.of_panel(panel, self.rows)

    def front(self, panel: Cell) -> list[dict[str, Any]]:
        """Rows of the Pareto front, from the smallest to the fastest.

        Each row has `index`, `peak_bytes`, `time`, and the values of the axes.
        """
        order = [("peak_bytes", "ascending"), ("time", "ascending"), ("index", "ascending")]
        rows = self.of_panel(panel).sort_by(order)
        front, least = [], float("inf")
        for at, time in enumerate(rows["time"].to_pylist()):
            if time < least:
                front.append(at)
                least = time
        # pyarrow cannot take an empty list of rows.
        shown = rows.select(["index", "peak_bytes", "time", *self.results.axes])
        return list(shown.take(front).to_pylist()) if front else []

    @property
    def fronts(self) -> dict[str, Any]:
        """The fronts of the panels, in full precision."""
        return {as_scalar(panel): self.front(panel) for panel in self.results.panels}


def pareto(results: Results) -> Pareto | None:
    """Select time and memory of all points that ran; None if a needed column was not reported.

    Iteration times are comparable only if all iterations have the same tokens and GPUs. Otherwise
    `time` is GPU-seconds per million tokens.
    """
    from pyarrow import compute

    if not results.has(*_NEEDED):
        return None
    rows = results.ran
    times, rates, gpus = (rows[name] for name in ("iteration_time_s", "tokens_per_s", "num_gpus"))
    tokens, counts = (
        compute.min_max(column).as_py() for column in (compute.multiply(times, rates), gpus)
    )
    alike = tokens["max"] - tokens["min"] <= _SAME * tokens["max"]
    if alike and counts["max"] == counts["min"]:
        return Pareto(results, rows.append_column("time", times), "iteration time, s")
    gpu_s = compute.divide(compute.multiply(gpus, 1e6), rates)
    return Pareto(results, rows.append_column("time", gpu_s), "GPU-seconds per million tokens")


@style.picture
def draw_pareto(picture: Pareto) -> Figure:
    """Draw each panel's points; points of the front are numbered as in the command's table."""
    results = picture.results
    fronts = {panel: picture.front(panel) for panel in results.panels}
    figure, all_axes = panels_of(results, 3.2, _key(picture, fronts))
    labels: list[Annotation] = []
    for axes, panel in zip(all_axes, results.panels, strict=True):
        labels += _draw_panel(axes, picture, panel, fronts[panel])
    figure.suptitle(f"{results.name}: time and memory", fontsize=10)
    handles = {
        str(handle.get_label()): handle
        for axes in all_axes
        for handle in axes.get_legend_handles_labels()[0]
    }
    style.legend_of(figure, list(handles.values()), columns=3)
    separate_labels(figure, labels)
    return figure


def _key(picture: Pareto, fronts: Mapping[Cell, list[dict[str, Any]]]) -> str:
    """Describe the numbered points, unless there are too many, and panels with a single size."""
    axes = picture.results.varying()
    lines = [
        " ".join(f"{short_words(panel)} {number}:".split())
        + " "
        + ", ".join(f"{name} {short_words(row[name])}" for name in axes)
        for panel, rows in fronts.items()
        for number, row in enumerate(rows[:_MOST_NUMBERED], start=1)
    ]
    if len(lines) > _MOST_KEY_LINES or any(len(line) > _KEY_CHARACTERS for line in lines):
        lines = ["Numbers refer to the table that simtrain plot prints."]
    alike = [panel for panel in fronts if _has_one_size(picture.of_panel(panel))]
    if alike:
        where = "" if alike == [""] else f" in {', '.join(map(short_words, alike))}"
        lines.append(f"All points need the same memory{where}: only the fastest is on the front.")
    return "\n".join(lines)


def _has_one_size(rows: pyarrow.Table) -> bool:
    sizes = rows["peak_bytes"].to_pylist()
    return len(sizes) > 1 and max(sizes) - min(sizes) <= _ONE_SIZE * max(sizes)


def _draw_panel(
    axes: Axes, picture: Pareto, panel: Cell, front: list[dict[str, Any]]
) -> list[Annotation]:
    """Draw the points of a panel; return the number labels of its front."""
    rows = picture.of_panel(panel)
    many = rows.num_rows > _MANY_POINTS
    all_sizes = [num_bytes / GIB for num_bytes in rows["peak_bytes"].to_pylist()]
    all_times = rows["time"].to_pylist()
    others: dict[str, Any] = {"color": style.GREY, "edgecolors": "#777777", "linewidths": 0.4}
    axes.scatter(all_sizes, all_times, 12, rasterized=many, label="other points", **others)
    sizes = [row["peak_bytes"] / GIB for row in front]
    times = [row["time"] for row in front]
    axes.step(sizes, times, "o-", where="post", **_FRONT, label="Pareto front")
    _draw_capacity(axes, rows, all_sizes)
    if times and max(all_times) > _LOGARITHMIC * min(all_times):
        set_logarithmic(axes.yaxis, all_times)
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(short_words(panel), fontsize=9)
    axes.set(xlabel="peak memory per GPU, GiB", ylabel=picture.unit)
    style.draw_grid_lines(axes)
    places = list(zip(sizes, times, strict=True))[:_MOST_NUMBERED]
    return [
        style.annotate(axes, str(number), at, (4.5, 2), color=style.BLUE)
        for number, at in enumerate(places, start=1)
    ]


def _draw_capacity(axes: Axes, rows: pyarrow.Table, sizes: list[float]) -> None:
    """Draw GPU capacities near the points; if all points have one size, start the axis at zero."""
    capacities = (
        rows["capacity_bytes"].unique().to_pylist() if _CAPACITY in rows.column_names else []
    )
    for capacity in sorted(num_bytes / GIB for num_bytes in capacities if num_bytes):
        if sizes and capacity < _NEAR * max(sizes):
            label = f"capacity, {capacity:.4g} GiB"
            axes.axvline(capacity, color=style.VERMILLION, ls="--", lw=1, label=label)
            axes.set_xlim(right=max(axes.get_xlim()[1], 1.02 * capacity))
    if _has_one_size(rows):
        axes.set_xlim(0, 1.1 * max(axes.get_xlim()[1], max(sizes)))
