"""Time against memory: what is faster with no more memory than anything else that ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simtrain.figures import style
from simtrain.figures.sweep.panels import panels_of
from simtrain.figures.sweep.results import Cell, Results, short_words
from simtrain.strict_yaml import as_scalar
from simtrain.units import GIB

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NEEDED = ("peak_bytes", "iteration_time_s", "tokens_per_s", "num_gpus")
_MANY_POINTS = 2000
_MOST_NUMBERED = 12
_SAME = 1e-9
"""Tokens of an iteration are computed back from its time: relative rounding."""


@dataclass(frozen=True, slots=True)
class Pareto:
    """Rows that ran with a column `time`, in this `unit`."""

    results: Results
    rows: pyarrow.Table
    unit: str

    def of_panel(self, panel: Cell) -> pyarrow.Table:
        """The rows of a panel."""
        return self.results.of_panel(panel, self.rows)

    def front(self, panel: Cell) -> list[dict[str, Any]]:
        """Rows than which nothing is as small and faster, from the smallest to the fastest.

        Each has `index`, `peak_bytes`, `time`, and the values of the axes.
        """
        order = [("peak_bytes", "ascending"), ("time", "ascending"), ("index", "ascending")]
        rows = self.of_panel(panel).sort_by(order)
        found, least = [], float("inf")
        for at, time in enumerate(rows["time"].to_pylist()):
            if time < least:
                found.append(at)
                least = time
        # pyarrow takes nothing from a panel in which nothing ran.
        shown = rows.select(["index", "peak_bytes", "time", *self.results.axes])
        return list(shown.take(found).to_pylist()) if found else []

    def to_json(self) -> dict[str, Any]:
        """The fronts of the panels, in full precision."""
        return {as_scalar(panel): self.front(panel) for panel in self.results.panels}


def pareto(results: Results) -> Pareto | None:
    """Time against memory; None where one of them was not reported.

    Where iterations differ in their tokens or in their GPUs their times say nothing of each other:
    then it is the GPU-seconds of a million tokens.
    """
    from pyarrow import compute

    if not results.has(*_NEEDED):
        return None
    rows = results.ran
    times, rates, gpus = (rows[name] for name in ("iteration_time_s", "tokens_per_s", "num_gpus"))
    tokens, counts = (
        compute.min_max(one).as_py() for one in (compute.multiply(times, rates), gpus)
    )
    alike = tokens["max"] - tokens["min"] <= _SAME * tokens["max"]
    if alike and counts["max"] == counts["min"]:
        return Pareto(results, rows.append_column("time", times), "iteration time, s")
    gpu_s = compute.divide(compute.multiply(gpus, 1e6), rates)
    return Pareto(results, rows.append_column("time", gpu_s), "GPU-seconds of a million tokens")


def draw_pareto(picture: Pareto) -> Figure:
    """Each panel's points; those of its front are numbered as in the command's table."""
    figure, all_axes = panels_of(picture.results, 3.2)
    for axes, panel in zip(all_axes, picture.results.panels, strict=True):
        _draw_panel(axes, picture, panel)
    figure.suptitle("Time against memory", fontsize=10)
    return figure


def _draw_panel(axes: Axes, picture: Pareto, panel: Cell) -> None:
    rows, front = picture.of_panel(panel), picture.front(panel)
    many = rows.num_rows > _MANY_POINTS
    sizes = [num_bytes / GIB for num_bytes in rows["peak_bytes"].to_pylist()]
    axes.scatter(
        sizes, rows["time"].to_pylist(), 12, color=style.GREY, linewidths=0, rasterized=many
    )
    sizes = [row["peak_bytes"] / GIB for row in front]
    times = [row["time"] for row in front]
    axes.step(sizes, times, where="post", color=style.BLUE, linewidth=1)
    axes.plot(sizes, times, "o", color=style.BLUE, markersize=4)
    places = list(zip(sizes, times, strict=True))[:_MOST_NUMBERED]
    for number, at in enumerate(places, start=1):
        style.annotate(axes, str(number), at, (3, 3), ha="left", color=style.BLUE)
    axes.set_title(short_words(panel), fontsize=9)
    axes.set(xlabel="peak memory of a GPU, GiB", ylabel=picture.unit)
    axes.set_ylim(bottom=0)
    style.rule_lines(axes)
