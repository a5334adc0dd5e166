"""Roofline: ops by arithmetic intensity and reached rate, below the machine's limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simtrain.iteration.report.operators import GpuLimits, Operator, StageOperators
from simtrain.render.figures import style
from simtrain.render.html.charts import RIGHT, WIDTH, Chart, ChartAxis, symbol
from simtrain.render.html.elements import Html, element, legend
from simtrain.units import four_digits

STYLES = ("chart.css",)
_MARKS = {
    "tensor cores": (style.BLUE, "circle"),
    "CUDA cores": (style.GREEN, "diamond"),
    "power": (style.VERMILLION, "square"),
    "memory bandwidth": (style.ORANGE, "triangle"),
    "kernel latency": (style.PURPLE, "diamond"),
}
_OTHER = (style.GREY, "circle")


def roofline(operators: StageOperators) -> Html:
    """Return the roofline of a stage's ops; the table of operators has the same numbers."""
    points = [row for row in operators.rows if row.flops and row.num_bytes]
    if not points:
        return element("p", "No op of the slowest stage has FLOPs and bytes.")
    limits = operators.limits
    used = dict.fromkeys(row.limit for row in points)
    marks = legend(
        (symbol(*_MARKS.get(limit or "", _OTHER)), f"limited by {limit or 'nothing'}")
        for limit in used
    )
    bandwidth = f"{four_digits(limits.memory_bandwidth_bytes_per_s / 1e12)} TB/s of memory"
    peaks = (f"{_teraflops(peak)} of {dtype}" for dtype, peak in limits.peak_flops_per_s.items())
    caption = element(
        "figcaption",
        "Matrix products and attention of one rank of the slowest stage. The size of a mark shows "
        "its share of the iteration time. Lines are the limits of the hardware profile: ",
        ", ".join([bandwidth, *peaks]),
        ". Ops without model FLOPs, such as norms, are not shown; the table above has their bytes "
        "per second.",
    )
    return element("figure", marks, _picture(points, limits, operators), caption)


def _teraflops(rate: float) -> str:
    return f"{four_digits(rate / 1e12)} TFLOP/s"


def _picture(points: Sequence[Operator], limits: GpuLimits, operators: StageOperators) -> Html:
    """Draw the roofline. Both axes are logarithmic and end at whole powers of ten."""
    bandwidth, peaks = limits.memory_bandwidth_bytes_per_s, limits.peak_flops_per_s
    intensities = [row.flops / row.num_bytes for row in points]
    rates = [row.flops_per_s for row in points]
    low, high = _powers([*intensities, *(peak / bandwidth for peak in peaks.values())])
    least, most = (rate / 1e12 for rate in _powers([*rates, *peaks.values()]))
    chart = Chart(
        ChartAxis(low, high, "arithmetic intensity, FLOP per byte", is_logarithmic=True),
        ChartAxis(least, most, "reached rate, TFLOP/s", is_logarithmic=True),
    )

    def roof(peak: float) -> Html:
        start, ridge = max(low, least * 1e12 / bandwidth), peak / bandwidth
        corners = (start, start * bandwidth), (ridge, peak), (high, peak)
        return chart.line([(x, rate / 1e12) for x, rate in corners], class_="roof")

    def label(dtype: str, peak: float) -> Html:
        place = {"x": f"{WIDTH - RIGHT:.0f}", "y": f"{chart.y(peak / 1e12) - 6:.2f}"}
        return element("text", f"peak of {dtype}, {_teraflops(peak)}", text_anchor="end", **place)

    largest_first = sorted(points, key=lambda row: -row.total_s)
    return chart.picture(
        "Roofline of the ops with FLOPs; the table of operators has the same numbers.",
        *map(roof, peaks.values()),
        *(label(dtype, peak) for dtype, peak in peaks.items()),
        *(_mark(chart, row, row.exposed_s / operators.iteration_time_s) for row in largest_first),
    )


def _powers(values: list[float]) -> tuple[float, float]:
    """Return the powers of ten around all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    return 10.0**low, 10.0**high


def _mark(chart: Chart, row: Operator, share: float) -> Html:
    """Draw an op; its title says its numbers."""
    colour, shape = _MARKS.get(row.limit or "", _OTHER)
    intensity = row.flops / row.num_bytes
    title = (
        f"{row.name} ({row.phase}), {row.shape}: {four_digits(intensity)} FLOP per byte, "
        f"{_teraflops(row.flops_per_s)}, {share:.1%} of the iteration"
    )
    size = 3.5 + 16 * math.sqrt(max(share, 0.0))
    return chart.mark((intensity, row.flops_per_s / 1e12), shape, size, title, fill=colour)
