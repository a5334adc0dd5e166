"""Roofline: ops by arithmetic intensity and reached rate, below the machine's limits."""

from __future__ import annotations

import math

from simtrain.render.figures import style
from simtrain.render.html.charts import RIGHT, WIDTH, Axis, Chart, symbol
from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, element, joined, legend
from simtrain.render.html.figures import Figures
from simtrain.render.html.sections import of_each_run
from simtrain.units import four_digits

_MARKS = {
    "tensor cores": (style.BLUE, "circle"),
    "CUDA cores": (style.GREEN, "diamond"),
    "power": (style.VERMILLION, "square"),
    "memory bandwidth": (style.ORANGE, "triangle"),
    "kernel latency": (style.PURPLE, "diamond"),
}
_OTHER = (style.GREY, "circle")


def roofline_section(runs: Figures) -> Section:
    """Build the section: a roofline of the slowest stage for each iteration."""
    return Section("roofline", "Roofline", of_each_run(runs, _figure), ("chart.css",))


def _figure(run: Figures) -> Html:
    operators = run.at("operators")
    points = [
        op for op in operators.at("operators").each() if op.value["flops"] and op.value["bytes"]
    ]
    limits = operators.at("limits")
    if not points:
        return element("p", "No op of the slowest stage has FLOPs and bytes.")
    used = dict.fromkeys(op.value["limit"] for op in points)
    marks = legend(
        (symbol(*_MARKS.get(limit or "", _OTHER)), f"limited by {limit or 'nothing'}")
        for limit in used
    )
    bandwidth = limits.at("memory_bandwidth_bytes_per_s")
    shown = [joined(bandwidth.number(_terabytes), " of memory")]
    for peak in limits.at("peak_flops_per_s").each():
        shown.append(joined(peak.number(_teraflops), f" of {peak.path[-1]}"))
    caption = element(
        "figcaption",
        "Matrix products and attention of one rank of the slowest stage. The size of a mark shows "
        "its share of the iteration time. Lines are the limits of the hardware profile: ",
        joined(*shown, separator=", "),
        ". Ops without model FLOPs, such as norms, are not shown; the table above has their bytes "
        "per second.",
    )
    return element("figure", marks, _picture(points, limits), caption)


def _teraflops(rate: float) -> str:
    return f"{four_digits(rate / 1e12)} TFLOP/s"


def _terabytes(rate: float) -> str:
    return f"{four_digits(rate / 1e12)} TB/s"


def _picture(points: list[Figures], limits: Figures) -> Html:
    """Draw the roofline. Both axes are logarithmic and end at whole powers of ten."""
    bandwidth = limits.value["memory_bandwidth_bytes_per_s"]
    peaks: dict[str, float] = limits.value["peak_flops_per_s"]
    intensities = [op.value["flops"] / op.value["bytes"] for op in points]
    rates = [op.value["flops_per_s"] for op in points]
    low, high = _powers([*intensities, *(peak / bandwidth for peak in peaks.values())])
    least, most = (rate / 1e12 for rate in _powers([*rates, *peaks.values()]))
    chart = Chart(
        Axis(low, high, "arithmetic intensity, FLOP per byte", is_logarithmic=True),
        Axis(least, most, "reached rate, TFLOP/s", is_logarithmic=True),
    )

    def roof(peak: float) -> Html:
        start, ridge = max(low, least * 1e12 / bandwidth), peak / bandwidth
        corners = (start, start * bandwidth), (ridge, peak), (high, peak)
        return chart.line([(x, rate / 1e12) for x, rate in corners], class_="roof")

    def label(dtype: str, peak: Figures) -> Html:
        place = {"x": f"{WIDTH - RIGHT:.0f}", "y": f"{chart.y(peak.value / 1e12) - 6:.2f}"}
        words = f"peak of {dtype}, ", peak.svg_number(_teraflops)
        return element("text", *words, text_anchor="end", **place)

    largest_first = sorted(points, key=lambda op: -op.value["total_s"])
    return chart.picture(
        "Roofline of the ops with FLOPs; the table of operators has the same numbers.",
        *map(roof, peaks.values()),
        *(label(dtype, limits.at("peak_flops_per_s", dtype)) for dtype in peaks),
        *(_mark(chart, op) for op in largest_first),
    )


def _powers(values: list[float]) -> tuple[float, float]:
    """Return the powers of ten around all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    return 10.0**low, 10.0**high


def _mark(chart: Chart, op: Figures) -> Html:
    record = op.value
    colour, shape = _MARKS.get(record["limit"] or "", _OTHER)
    words = (
        *(op.at("op").words, " (", op.at("phase").words, "), ", op.at("shape").words, ": "),
        op.at("flops").share_of(op.at("bytes"), four_digits),
        *(" FLOP per byte, ", op.at("flops_per_s").number(_teraflops), ", "),
        *(op.at("share").percent, " of the iteration"),
    )
    point = record["flops"] / record["bytes"], record["flops_per_s"] / 1e12
    size = 3.5 + 16 * math.sqrt(max(record["share"], 0.0))
    return chart.mark(point, shape, size, *words, fill=colour)
