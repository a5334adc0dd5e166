"""A faster or slower cluster: simulated iterations with less and more of each resource.

A picture and a table show the times of all points. Sliders choose a point: `sliders.js` writes its
numbers, which it reads from the data.
"""

from __future__ import annotations

from itertools import cycle

from simtrain.render.html.charts import SERIES, Axis, Chart, logarithmic_axis, symbol
from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, attribute, card, element, joined, legend, table
from simtrain.render.html.figures import Figures
from simtrain.render.html.sections import of_each_run
from simtrain.render.html.sections.breakdown import CAUSES, bar_of_causes, label_of_cause

_INTRODUCTION = (
    "Iterations with less and more of one resource of the cluster, each simulated; the others stay "
    "as they are. The scenario and the order of tasks do not change. Each collective uses the "
    "algorithm that is fastest on the changed cluster."
)
_NO_SCRIPTS = "Sliders need JavaScript, which this browser does not run. The table has all points."
_MARGIN = 0.06
"""Space above and below the curves, as a share of their height."""


def sliders_section(runs: Figures) -> Section:
    """Build the section: times by resource, and for each iteration a slider per resource."""
    body = joined(element("p", _INTRODUCTION), of_each_run(runs, _resources))
    styles = ("answer.css", "breakdown.css", "chart.css", "sliders.css")
    return Section("sliders", "A faster or slower cluster", body, styles, ("sliders.js",))


def _resources(run: Figures) -> Html:
    curves = [*run.at("curves").each()]
    missing = element("noscript", element("p", _NO_SCRIPTS))
    return joined(_form(run, curves), missing, _picture(curves), _times(curves))


def _form(run: Figures, curves: list[Figures]) -> Html:
    """Build the sliders, and the figures of the chosen point. The script shows the form."""
    points = curves[0].value["points"]
    base = [point["factor"] for point in points].index(1)
    chosen, anchor = curves[0].at("points", base), f"sliders{run.pointer.replace('/', '-')}"
    time, mfu = chosen.at("iteration_time_s").seconds, chosen.at("mfu").percent
    cards = element(
        "div",
        _card("Iteration time", "time", time, joined(time, " on the simulated cluster")),
        _card("Change", "change", chosen.at("change").number(lambda change: "none")),
        _card("MFU", "mfu", mfu, "of the bf16 peak of the chosen cluster"),
        class_="cards",
        role="status",
    )
    sliders = (_slider(curve, f"{anchor}-{curve.value['resource']}", base) for curve in curves)
    return element(
        "form",
        element("fieldset", element("legend", "Resources, one at a time"), *sliders),
        element("datalist", element("option", value=str(base)), id=f"{anchor}-base"),
        element("button", "Reset", type="reset"),
        cards,
        _breakdown(chosen, curves),
        class_="sliders",
        data_base=str(base),
        hidden=True,
        **attribute("aria_label", "Cluster of ", run.at("name").words),
    )


def _slider(curve: Figures, anchor: str, base: int) -> Html:
    """Build the slider of a resource. Its text is the factor and the amount at the point."""
    label, points = curve.value["label"], curve.at("points")
    words = points.at(base, "label").sentence("text")
    return element(
        "div",
        element("label", label[0].upper() + label[1:], for_=anchor),
        element(
            "input",
            type="range",
            id=anchor,
            name=curve.value["resource"],
            min="0",
            max=str(len(points.value) - 1),
            value=str(base),
            list=f"{anchor.rpartition('-')[0]}-base",
            data_points=points.pointer,
            **attribute("aria_valuetext", words),
        ),
        element("output", words, for_=anchor),
        class_="slider",
    )


def _card(label: str, name: str, value: str, remark: str = "") -> Html:
    """Build a card whose value the script replaces."""
    return card(label, element("output", value, name=name), remark)


def _breakdown(base: Figures, curves: list[Figures]) -> Html:
    """Build the breakdown of the unchanged cluster and that of the chosen one, on one scale."""
    points = [point for curve in curves for point in curve.value["points"]]
    causes = [name for name in CAUSES if any(point["breakdown_s"][name] for point in points)]
    longest_s = max(point["iteration_time_s"] for point in points)
    seconds = base.value["breakdown_s"]
    width = f"width:{100 * base.value['iteration_time_s'] / longest_s:.3f}%"
    bars = (
        joined(
            element("span", name), bar_of_causes(causes, seconds, class_=f"bar {name}", style=width)
        )
        for name in ("simulated", "chosen")
    )
    cells = (base.at("breakdown_s", name).seconds for name in causes)
    rows = [
        (label_of_cause(name), cell, element("span", cell, data_cause=name))
        for name, cell in zip(causes, cells, strict=True)
    ]
    time = base.at("iteration_time_s").seconds
    rows.append((joined("iteration"), time, element("span", time, data_cause="iteration")))
    headings = ("part", ">simulated cluster", ">chosen cluster")
    caption = "Time by cause, mean over the pipeline stages"
    return joined(
        element("div", *bars, class_="two-bars", data_longest=repr(longest_s), aria_hidden="true"),
        table(caption, headings, rows, class_="sums"),
    )


def _picture(curves: list[Figures]) -> Html:
    """Draw the iteration time by factor, a curve for each resource."""
    points = [point for curve in curves for point in curve.value["points"]]
    times = [point["iteration_time_s"] for point in points]
    margin = _MARGIN * (max(times) - min(times))
    chart = Chart(
        logarithmic_axis([point["factor"] for point in points], "times as much of one resource"),
        Axis(min(times) - margin, max(times) + margin, "iteration time, s"),
    )
    lines: list[Html] = []
    marks: list[Html] = []
    entries: list[tuple[str, str]] = []
    for curve, (colour, shape) in zip(curves, cycle(SERIES)):
        label = curve.at("label").words
        places = [(point["factor"], point["iteration_time_s"]) for point in curve.value["points"]]
        lines.append(chart.line(places, class_="curve", stroke=colour))
        for point, place in zip(curve.at("points").each(), places, strict=True):
            # All curves meet at factor 1, where marks would hide one another.
            if point.value["factor"] != 1:
                words = label, " ", _factor(point), ": ", _seconds(point)
                attributes = {"fill": colour, "data_point": point.pointer}
                marks.append(chart.mark(place, shape, 4.5, *words, **attributes))
        entries.append((symbol(colour, shape), label))
    name = "Iteration time by factor for each resource; the table below lists the numbers."
    return element("figure", legend(entries), chart.picture(name, *lines, *marks))


def _times(curves: list[Figures]) -> Html:
    """Build the table of the iteration times of all points."""
    rows = [
        (curve.at("label").words, *(_seconds(point) for point in curve.at("points").each()))
        for curve in curves
    ]
    factors = (joined(">", _factor(point)) for point in curves[0].at("points").each())
    return table("Iteration time by factor of one resource", ("resource", *factors), rows)


def _factor(point: Figures) -> Html:
    return point.at("factor").number("{:g}×".format)


def _seconds(point: Figures) -> Html:
    return point.at("iteration_time_s").seconds
