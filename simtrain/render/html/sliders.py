"""A faster or slower cluster: simulated iterations with less and more of each resource.

A picture and a table show the times of all points. Sliders choose a point; `sliders.js` writes its
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from simtrain.base.wording import sentence_json
from simtrain.iteration.report.breakdown import breakdown_by_name
from simtrain.render.html.bars import CAUSES, bar_of_causes
from simtrain.render.html.charts import SERIES, Chart, ChartAxis, logarithmic_axis, symbol
from simtrain.render.html.elements import (
    Html,
    card,
    element,
    joined,
    json_text,
    legend,
    number,
    scroll_box,
    swatch,
)
from simtrain.render.html.view import sentence_html, view_html
from simtrain.studies.sensitivity import ResourceCurve, ResourcePoint
from simtrain.units import format_seconds
from simtrain.views.curves import curves_table
from simtrain.views.view import View

STYLES = ("answer.css", "breakdown.css", "chart.css", "sliders.css")
SCRIPTS = ("sliders.js",)
INTRODUCTION = (
    "Iterations with less and more of one resource of the cluster, each simulated; the others stay "
    "as they are. The scenario and the order of tasks do not change. Each collective uses the "
    "algorithm that is fastest on the changed cluster."
)
_NO_SCRIPTS = "Sliders need JavaScript, which this browser does not run. The table has all points."
_MARGIN = 0.06
"""Space above and below the curves, as a share of their height."""


def sliders(curves: Sequence[ResourceCurve], anchor: str, name: str) -> Html:
    """Return a slider per resource, a picture and a table of an iteration.

    Args:
        curves: the simulated points.
        anchor: prefix of the ids, which differ between the iterations of a page.
        name: name of the iteration.
    """
    missing = element("noscript", element("p", _NO_SCRIPTS))
    table = view_html(View([curves_table(curves)]))
    block = joined(_form(curves, anchor, name), missing, _picture(curves), table)
    return element("div", block, class_="resources")


def _form(curves: Sequence[ResourceCurve], anchor: str, name: str) -> Html:
    """Build the sliders, and the figures of the chosen point. The script shows the form."""
    base = [point.factor for point in curves[0].points].index(1)
    chosen = curves[0].points[base]
    time, mfu = _seconds(chosen.iteration_time_s), number(chosen.mfu, f"{chosen.mfu:.1%}")
    cards = element(
        "div",
        _card("Iteration time", "time", time, joined(time, " on the simulated cluster")),
        _card("Change", "change", number(chosen.change, "none")),
        _card("MFU", "mfu", mfu, "of the bf16 peak of the chosen cluster"),
        class_="cards",
        role="status",
    )
    rows = (_slider(curve, f"{anchor}-{curve.resource}", base) for curve in curves)
    return element(
        "form",
        element("fieldset", element("legend", "Resources, one at a time"), *rows),
        element("datalist", element("option", value=str(base)), id=f"{anchor}-base"),
        element("button", "Reset", type="reset"),
        cards,
        _breakdown(chosen, curves),
        element("script", json_text({"curves": _data(curves)}), type="application/json"),
        class_="sliders",
        data_base=str(base),
        hidden=True,
        aria_label=f"Cluster of {name}",
    )


def _data(curves: Sequence[ResourceCurve]) -> dict[str, list[dict[str, object]]]:
    """Return the points of each resource, with the numbers in their labels."""
    return {
        curve.resource: [
            point.to_dict() | {"label": sentence_json(point.label)} for point in curve.points
        ]
        for curve in curves
    }


def _slider(curve: ResourceCurve, anchor: str, base: int) -> Html:
    """Build the slider of a resource. Its text is the factor and the amount at the point."""
    label, words = curve.resource_label, curve.points[base].label
    return element(
        "div",
        element("label", label[0].upper() + label[1:], for_=anchor),
        element(
            "input",
            type="range",
            id=anchor,
            name=curve.resource,
            min="0",
            max=str(len(curve.points) - 1),
            value=str(base),
            list=f"{anchor.removesuffix(curve.resource)}base",
            aria_valuetext=words,
        ),
        element("output", sentence_html(words), for_=anchor),
        class_="slider",
    )


def _card(label: str, name: str, value: str, remark: str = "") -> Html:
    """Build a card whose value the script replaces."""
    return card(label, element("output", value, name=name), remark)


def _seconds(seconds: float) -> Html:
    return number(seconds, format_seconds(seconds))


def _breakdown(base: ResourcePoint, curves: Sequence[ResourceCurve]) -> Html:
    """Build the breakdown of the unchanged cluster and that of the chosen one, on one scale."""
    points = [point for curve in curves for point in curve.points]
    of_points = [breakdown_by_name(point.breakdown) for point in points]
    causes = [name for name in CAUSES if any(seconds[name] for seconds in of_points)]
    longest_s, seconds = (
        max(point.iteration_time_s for point in points),
        breakdown_by_name(base.breakdown),
    )
    width = f"width:{100 * base.iteration_time_s / longest_s:.3f}%"
    bars = (
        joined(
            element("span", name), bar_of_causes(causes, seconds, class_=f"bar {name}", style=width)
        )
        for name in ("simulated", "chosen")
    )
    rows = [
        _row(name, joined(swatch(CAUSES[name][1]), CAUSES[name][0]), seconds[name])
        for name in causes
    ]
    total = _row("iteration", "iteration", base.iteration_time_s)
    headings = ("part", "simulated cluster", "chosen cluster")
    head = (
        element("th", heading, scope="col", class_="number" if place else "text")
        for place, heading in enumerate(headings)
    )
    table = element(
        "table",
        element("caption", "Time by cause, mean over the pipeline stages"),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        element("tfoot", total),
    )
    return joined(
        element("div", *bars, class_="two-bars", data_longest=repr(longest_s), aria_hidden="true"),
        scroll_box(table, "Time by cause"),
    )


def _row(name: str, label: str, seconds: float) -> Html:
    """Build the row of a cause. The script replaces the second number."""
    number_html = _seconds(seconds)
    return element(
        "tr",
        element("th", label, scope="row", class_="text"),
        element("td", number_html, class_="number"),
        element("td", element("span", number_html, data_cause=name), class_="number"),
    )


def _picture(curves: Sequence[ResourceCurve]) -> Html:
    """Draw the iteration time by factor, a curve for each resource."""
    points = [point for curve in curves for point in curve.points]
    times = [point.iteration_time_s for point in points]
    margin = _MARGIN * (max(times) - min(times))
    chart = Chart(
        logarithmic_axis([point.factor for point in points], "times as much of one resource"),
        ChartAxis(min(times) - margin, max(times) + margin, "iteration time, s"),
    )
    lines: list[Html] = []
    marks: list[Html] = []
    entries: list[tuple[str, str]] = []
    for curve, (colour, shape) in zip(curves, cycle(SERIES)):
        label = curve.resource_label
        places = [(point.factor, point.iteration_time_s) for point in curve.points]
        lines.append(chart.line(places, class_="curve", stroke=colour))
        for number_of_point, place in enumerate(places):
            # All curves meet at factor 1, where marks would hide one another.
            if place[0] != 1:
                title = f"{label} {place[0]:g}×: {format_seconds(place[1])}"
                chosen = {"fill": colour, "data_point": f"{curve.resource} {number_of_point}"}
                marks.append(chart.mark(place, shape, 4.5, title, **chosen))
        entries.append((symbol(colour, shape), label))
    name = "Iteration time by factor for each resource; the table below lists the numbers."
    return element("figure", legend(entries), chart.picture(name, *lines, *marks))
