"""Pictures of a report on a sweep: heat map, Pareto front and scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any

from simtrain.render.figures.sweep.pareto import Pareto
from simtrain.render.html.charts import SERIES, Chart, linear_axis, logarithmic_axis
from simtrain.render.html.elements import Html, element, joined, legend, scroll_box, swatch
from simtrain.render.html.figures import Figures
from simtrain.units import GIB, four_digits

Format = Callable[[Figures], Html]
"""Shows a number of a column."""
_LOGARITHMIC = 20.0
"""The time axis is logarithmic above this ratio of the slowest to the fastest point."""
_MOST_MARKS = 2000


def heat_map_panel(heat: Figures, cells: Figures, shown: Format, larger_is_better: bool) -> Html:
    """Build a table of one panel; cells are the darker, the nearer they are to the best.

    Args:
        heat: the heat map (`HeatMap.to_json`).
        cells: the cells of the panel.
        shown: shows the value of a cell.
        larger_is_better: whether the best value is the largest.
    """
    values = [cell_data["value"] for cell_data in cells.value if cell_data.get("value") is not None]
    best = (max if larger_is_better else min)(values, default=0.0)

    def cell(figures: Figures) -> Html:
        """Build a cell, shaded by its value in proportion to the best."""
        value = figures.value.get("value")
        if value is None:
            return element("td", figures.value.get("reason", ""), class_="empty")
        share = (value / best if larger_is_better else best / value) if best and value else 1.0
        folded = [
            joined(name.rpartition(".")[2].replace("_", " "), " ", figures.at(name).setting)
            for name in heat.value["best_over"]
        ]
        words = element("small", joined(*folded, separator=", ")) if folded else ""
        is_best = {"class_": "best"} if value == best else {}
        return element(
            "td", shown(figures.at("value")), words, style=f"--share:{share:.4f}", **is_best
        )

    rows = [
        [*row] for _, row in groupby(cells.each(), lambda cell_figures: cell_figures.value["y"])
    ]
    body = [
        element("tr", element("th", row[0].at("y").setting, scope="row"), *map(cell, row))
        for row in rows
    ]
    headings = (element("th", place.at("x").setting, scope="col") for place in rows[0])
    corner = element("th", heat.at("y").words, " \\ ", heat.at("x").words, class_="corner")
    table = element(
        "table",
        element("thead", element("tr", corner, *headings)),
        element("tbody", *body),
        class_="heat",
    )
    return scroll_box(table, "Heat map")


def pareto_panel(pareto: Pareto, panel: Any, front: Figures) -> Html:
    """Draw the points of one panel by memory and time; points of the front are numbered."""
    rows = pareto.of_panel(panel)
    sizes = [num_bytes / GIB for num_bytes in rows["peak_bytes"].to_pylist()]
    times = rows["time"].to_pylist()
    wide = max(times) > _LOGARITHMIC * min(times)
    y_axis = (logarithmic_axis if wide else linear_axis)(times, pareto.unit)
    chart = Chart(linear_axis(sizes, "peak memory per GPU, GiB"), y_axis)
    points = [(point["peak_bytes"] / GIB, point["time"]) for point in front.value]
    # From a point to the next larger one, less memory than that of the larger helps nothing.
    steps = [corner for old, new in pairwise(points) for corner in (old, (new[0], old[1]))]
    shown, on_front = [*zip(sizes, times, strict=True)][:_MOST_MARKS], {*points}
    others = [
        chart.mark(point, "circle", 3.0, class_="other-mark")
        for point in shown
        if point not in on_front
    ]
    marks = [
        joined(_front_mark(chart, point, figure), _ordinal(chart, point, number))
        for number, (point, figure) in enumerate(zip(points, front.each(), strict=True), start=1)
    ]
    line = chart.line([*steps, *points[-1:]], class_="front")
    label = "Peak memory and time of the points; the table below lists the Pareto front."
    return element("figure", chart.picture(label, *others, line, *marks))


def _front_mark(chart: Chart, point: tuple[float, float], figures: Figures) -> Html:
    time = figures.at("time").number(four_digits)
    words = "peak memory ", figures.at("peak_bytes").bytes, ", time ", time
    return chart.mark(point, "circle", 5.0, *words, class_="mark front-mark")


def _ordinal(chart: Chart, point: tuple[float, float], number: int) -> Html:
    place = {"x": f"{chart.x(point[0]) + 9:.2f}", "y": f"{chart.y(point[1]) - 7:.2f}"}
    return element("text", str(number), class_="ordinal", **place)


def scaling_picture(curves: Figures, names: Sequence[Html]) -> Html:
    """Draw the best tokens per second by GPUs; dashed lines are linear scaling."""
    series = [
        {int(count): rate for count, rate in curve.items()} for curve in curves.value.values()
    ]
    ideals = [_linear_scaling(curve) for curve in series]
    counts = [float(count) for curve in series for count in curve]
    rates = [rate for curve in (*series, *ideals) for rate in curve.values()]
    chart = Chart(logarithmic_axis(counts, "GPUs"), logarithmic_axis(rates, "tokens per second"))
    drawn: list[Html] = []
    entries: list[tuple[str, str]] = []
    for at, (curve, ideal, figures) in enumerate(zip(series, ideals, curves.each(), strict=True)):
        colour, shape = SERIES[at % len(SERIES)]
        drawn.append(chart.line([*ideal.items()], class_="ideal", stroke=colour))
        drawn.append(chart.line([*curve.items()], class_="curve", stroke=colour))
        for rate_figure in figures.each():
            count = int(rate_figure.path[-1])
            words = rate_figure.key, " GPUs: ", rate_figure.count, " tokens per second"
            drawn.append(chart.mark((count, rate_figure.value), shape, 4.5, *words, fill=colour))
        entries.append((swatch(colour), names[at] or "best"))
    entries.append(("", "dashed: linear scaling from the fewest GPUs"))
    label = "Best tokens per second by number of GPUs; the table below lists the numbers."
    return element("figure", legend(entries), chart.picture(label, *drawn))


def _linear_scaling(curve: dict[int, float]) -> dict[int, float]:
    fewest = min(curve)
    return {count: curve[fewest] / fewest * count for count in curve}
