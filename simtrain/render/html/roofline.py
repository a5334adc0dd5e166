"""Roofline: ops by arithmetic intensity and reached rate, below the machine's limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simtrain.iteration.report.operators import GpuLimits, Operator, StageOperators
from simtrain.render.figures import style
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


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900.0, 430.0, 70.0, 30.0, 16.0, 46.0
SHAPES = {
    "square": "M-1-1H1V1H-1Z",
    "triangle": "M0-1.2 1.15.9H-1.15Z",
    "diamond": "M0-1.35 1.35 0 0 1.35-1.35 0Z",
    "circle": "M-1.1 0a1.1 1.1 0 1 0 2.2 0a1.1 1.1 0 1 0-2.2 0Z",
}
_STEPS = 1, 2, 5, 10
_FEW = 3
"""A logarithmic axis of at most this many powers of ten has ticks at 1, 2 and 5 of each."""


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


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """An axis of a picture from `low` to `high`, with a label, and ticks inside.

    Args:
        low, high: values at both ends; above zero if the axis is logarithmic.
        label: name and unit.
        is_logarithmic: whether equal ratios have equal lengths.
    """

    low: float
    high: float
    label: str
    is_logarithmic: bool = False

    def share(self, value: float) -> float:
        """Return the place of a value, from 0 at the low end to 1 at the high end."""
        if not self.is_logarithmic:
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Return round values inside the axis."""
        if not self.is_logarithmic:
            rough = (self.high - self.low) / 6
            power = 10.0 ** math.floor(math.log10(rough))
            step = power * next(
                candidate for candidate in _STEPS if candidate * power >= rough * (1 - 1e-9)
            )
            first = math.ceil(self.low / step - 1e-9)
            last = math.floor(self.high / step + 1e-9)
            return [number * step for number in range(first, last + 1)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = _STEPS[:3] if len(powers) <= _FEW + 1 else _STEPS[:1]
        ticks = [step * 10.0**power for power in powers for step in steps]
        return [tick for tick in ticks if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]


def symbol(colour: str, shape: str) -> Html:
    """Return a mark as a symbol of a legend."""
    path = element("path", d=SHAPES[shape], fill=colour, class_="mark")
    return element("svg", path, viewBox="-1.6 -1.6 3.2 3.2", class_="symbol", aria_hidden="true")


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with two axes."""

    x_axis: ChartAxis
    y_axis: ChartAxis

    def x(self, value: float) -> float:
        """Return the horizontal place of a value."""
        return LEFT + self.x_axis.share(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical place of a value."""
        return HEIGHT - BOTTOM - self.y_axis.share(value) * (HEIGHT - TOP - BOTTOM)

    def line(self, points: Sequence[tuple[float, float]], **attributes: str) -> Html:
        """Return a line through points."""
        corners = " ".join(f"{self.x(x):.2f},{self.y(y):.2f}" for x, y in points)
        return element("polyline", points=corners, fill="none", **attributes)

    def mark(
        self,
        point: tuple[float, float],
        shape: str,
        size: float,
        *title: str,
        class_: str = "mark",
        **attributes: str,
    ) -> Html:
        """Return a mark at a point. Its title is shown while the mouse is over it."""
        x, y = self.x(point[0]), self.y(point[1])
        return element(
            "path",
            *([element("title", *title)] if title else []),
            d=SHAPES[shape],
            transform=f"translate({x:.2f} {y:.2f}) scale({size:.3f})",
            class_=class_,
            **attributes,
        )

    def picture(self, label: str, *content: Html) -> Html:
        """Return the picture with its grid, labels of axes, and content.

        Args:
            label: what a screen reader says.
            content: lines and marks in the order in which they are drawn.
        """
        svg = element(
            "svg",
            *self._grid(),
            *content,
            viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
            class_="chart",
            role="img",
            aria_label=label,
        )
        # On narrow screens it scrolls sideways, so the keyboard must reach it.
        return element("div", svg, class_="chart-box", tabindex="0", role="group", aria_label=label)

    def _grid(self) -> Iterator[Html]:
        low, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for value in self.x_axis.ticks():
            at = f"{self.x(value):.2f}"
            yield element("line", x1=at, x2=at, y1=f"{TOP}", y2=f"{low}", class_="grid")
            place = {"x": at, "y": f"{low + 18}"}
            yield element("text", _tick(value), text_anchor="middle", class_="tick", **place)
        for value in self.y_axis.ticks():
            at = f"{self.y(value):.2f}"
            yield element("line", x1=f"{LEFT}", x2=f"{right}", y1=at, y2=at, class_="grid")
            place = {"x": f"{LEFT - 8}", "y": at, "dominant_baseline": "middle"}
            yield element("text", _tick(value), text_anchor="end", class_="tick", **place)
        place = {"x": f"{(LEFT + right) / 2}", "y": f"{HEIGHT - 6}"}
        yield element("text", self.x_axis.label, text_anchor="middle", **place)
        turned = f"translate(16 {(TOP + low) / 2}) rotate(-90)"
        yield element("text", self.y_axis.label, text_anchor="middle", transform=turned)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
