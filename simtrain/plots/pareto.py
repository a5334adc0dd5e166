"""Time against memory: what is faster with no more memory than anything else that ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simtrain.plots.panels import panels_of
from simtrain.plots.results import Cell, Results, as_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GIB = 2**30
_NEEDED = ("peak_bytes", "iteration_time_s", "tokens_per_s", "num_gpus")
_MANY_POINTS = 2000
_MOST_NUMBERED = 12
_SAME = 1e-9
"""Tokens of an iteration are computed back from its time: relative rounding."""


@dataclass(frozen=True, slots=True)
class Point:
    """A row that ran: what it needs and what it takes, and its place on the axes."""

    index: int
    peak_bytes: int
    time: float
    place: dict[str, Cell]

    def to_json(self) -> dict[str, Any]:
        """Plain data, in full precision."""
        return {
            "index": self.index,
            "peak_bytes": self.peak_bytes,
            "time": self.time,
            **self.place,
        }


@dataclass(frozen=True, slots=True)
class Pareto:
    """The points of each panel and those on its front; `unit` says what their `time` is."""

    results: Results
    unit: str
    points: dict[Cell, list[Point]]

    def front(self, panel: Cell) -> list[Point]:
        """Points than which nothing is as small and faster, from the smallest to the fastest."""
        found: list[Point] = []
        for point in sorted(self.points[panel], key=lambda p: (p.peak_bytes, p.time, p.index)):
            if not found or point.time < found[-1].time:
                found.append(point)
        return found

    def to_json(self) -> dict[str, Any]:
        """The fronts of the panels, in full precision."""
        return {
            str(panel): [point.to_json() for point in self.front(panel)] for panel in self.points
        }


def pareto(results: Results) -> Pareto | None:
    """Time against memory; None where one of them was not reported.

    Where iterations differ in their tokens or in their GPUs their times say nothing of each other:
    then it is the GPU-seconds of a million tokens.
    """
    if not results.has(*_NEEDED):
        return None
    rows = results.ran.to_pylist()
    tokens = [row["tokens_per_s"] * row["iteration_time_s"] for row in rows]
    alike = max(tokens) - min(tokens) <= _SAME * max(tokens)
    alike = alike and len({row["num_gpus"] for row in rows}) == 1
    points: dict[Cell, list[Point]] = {panel: [] for panel in results.panels}
    for row in rows:
        gpu_s = 1e6 * row["num_gpus"] / row["tokens_per_s"]
        place = {name: row[name] for name in results.axes}
        point = Point(
            row["index"], row["peak_bytes"], row["iteration_time_s"] if alike else gpu_s, place
        )
        points[row[results.panel_axis] if results.panel_axis else ""].append(point)
    unit = "iteration time, s" if alike else "GPU-seconds of a million tokens"
    return Pareto(results, unit, points)


def draw_pareto(picture: Pareto) -> Figure:
    """Each panel's points; those of its front are numbered as in the command's table."""
    figure, all_axes = panels_of(picture.results, 3.2)
    for axes, panel in zip(all_axes, picture.results.panels, strict=True):
        _draw_panel(axes, picture, panel)
    figure.suptitle("Time against memory", fontsize=10)
    return figure


def _draw_panel(axes: Axes, picture: Pareto, panel: Cell) -> None:
    from simtrain.pictures import style

    points, front = picture.points[panel], picture.front(panel)
    many = len(points) > _MANY_POINTS
    sizes = [point.peak_bytes / _GIB for point in points]
    times = [point.time for point in points]
    axes.scatter(sizes, times, 12, color=style.GREY, linewidths=0, rasterized=many)
    sizes = [point.peak_bytes / _GIB for point in front]
    times = [point.time for point in front]
    axes.step(sizes, times, where="post", color=style.BLUE, linewidth=1)
    axes.plot(sizes, times, "o", color=style.BLUE, markersize=4)
    for number, point in enumerate(front[:_MOST_NUMBERED], start=1):
        at = point.peak_bytes / _GIB, point.time
        text = axes.annotate(str(number), at, (3, 3), textcoords="offset points")
        text.set(fontsize=style.SMALL, color=style.BLUE)
    axes.set_title(str(panel), loc="left", fontsize=9)
    axes.set_xlabel("peak memory of a GPU, GiB")
    axes.set_ylabel(picture.unit)
    axes.set_ylim(bottom=0)
    style.rule_lines(axes)


def words_of(point: Point, axes: list[str]) -> str:
    """Where on these axes a point is: "recompute: full, batch.micro: 4"."""
    return ", ".join(f"{name}: {as_words(point.place[name])}" for name in axes)
