"""Axes, grids and marks of pictures as SVG elements, which follow the theme of the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simtrain.render.figures import style
from simtrain.render.html.elements import Html, element

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900.0, 430.0, 70.0, 30.0, 16.0, 46.0
SHAPES = {
    "square": "M-1-1H1V1H-1Z",
    "triangle": "M0-1.2 1.15.9H-1.15Z",
    "diamond": "M0-1.35 1.35 0 0 1.35-1.35 0Z",
    "circle": "M-1.1 0a1.1 1.1 0 1 0 2.2 0a1.1 1.1 0 1 0-2.2 0Z",
}
SERIES = (
    *((style.BLUE, "circle"), (style.VERMILLION, "square"), (style.GREEN, "triangle")),
    *((style.PURPLE, "diamond"), (style.ORANGE, "circle"), (style.SKY, "square")),
    *((style.BLUE, "triangle"), (style.VERMILLION, "diamond"), (style.GREEN, "circle")),
)
"""Colour and shape of the marks of each series of a picture."""
_STEPS = 1, 2, 5, 10
_FEW = 3
"""A logarithmic axis of at most this many powers of ten has ticks at 1, 2 and 5 of each."""


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


def logarithmic_axis(values: Sequence[float], label: str) -> ChartAxis:
    """Return a logarithmic axis with a margin around all values."""
    return ChartAxis(min(values) / 1.15, 1.15 * max(values), label, is_logarithmic=True)


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
