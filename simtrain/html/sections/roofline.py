"""Roofline: ops by arithmetic intensity and reached rate, below the machine's limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from simtrain.figures import style
from simtrain.html.document import Section
from simtrain.html.elements import Html, element, joined
from simtrain.html.figures import Figures

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900.0, 430.0, 70.0, 30.0, 16.0, 46.0
_MARKS = {
    "tensor cores": (style.BLUE, "circle"),
    "CUDA cores": (style.GREEN, "diamond"),
    "power": (style.VERMILLION, "square"),
    "memory bandwidth": (style.ORANGE, "triangle"),
    "kernel latency": (style.PURPLE, "diamond"),
}
_OTHER = (style.GREY, "circle")
_SHAPES = {
    "square": "M-1-1H1V1H-1Z",
    "triangle": "M0-1.2 1.15.9H-1.15Z",
    "diamond": "M0-1.35 1.35 0 0 1.35-1.35 0Z",
    "circle": "M-1.1 0a1.1 1.1 0 1 0 2.2 0a1.1 1.1 0 1 0-2.2 0Z",
}


def roofline_section(runs: Figures) -> Section:
    """Build the section: a roofline of the slowest stage for each iteration."""
    blocks = [_figure(run, is_named=len(runs.value) > 1) for run in runs.each()]
    return Section("roofline", "Roofline", joined(blocks), ("roofline.css",))


def _figure(run: Figures, *, is_named: bool) -> Html:
    operators = run.at("operators")
    points = [
        op for op in operators.at("operators").each() if op.value["flops"] and op.value["bytes"]
    ]
    limits = operators.at("limits")
    peaks = limits.at("peak_flops_per_s")
    name = [element("h3", run.at("name").words)] if is_named else []
    if not points:
        return joined((*name, element("p", "No op of the slowest stage has FLOPs and bytes.")))
    used = dict.fromkeys(op.value["limit"] for op in points)
    legend = element(
        "ul",
        *(element("li", _symbol(limit), f"limited by {limit or 'nothing'}") for limit in used),
        class_="legend",
    )
    caption = element(
        "figcaption",
        "Matrix products and attention of one rank of the slowest stage. The size of a mark shows "
        "its share of the iteration time. Lines are the limits of the hardware profile: ",
        limits.at("memory_bandwidth_bytes_per_s").number(lambda rate: f"{rate / 1e12:.4g} TB/s"),
        " of memory",
        *(
            word
            for peak in peaks.each()
            for word in (", ", peak.number(_teraflops), f" of {peak.path[-1]}")
        ),
        ". Ops without model FLOPs, such as norms, are not shown; the table above has their bytes "
        "per second.",
    )
    return joined((*name, element("figure", legend, _picture(points, limits), caption)))


def _symbol(limit: str | None) -> Html:
    colour, shape = _MARKS.get(limit or "", _OTHER)
    path = element("path", d=_SHAPES[shape], fill=colour, class_="mark")
    return element("svg", path, viewBox="-1.6 -1.6 3.2 3.2", class_="symbol", aria_hidden="true")


def _teraflops(rate: float) -> str:
    return f"{rate / 1e12:.4g} TFLOP/s"


def _picture(points: list[Figures], limits: Figures) -> Html:
    """Draw the roofline. Both axes are logarithmic and end at whole powers of ten."""
    bandwidth = limits.value["memory_bandwidth_bytes_per_s"]
    peaks: dict[str, float] = limits.value["peak_flops_per_s"]
    intensities = [op.value["flops"] / op.value["bytes"] for op in points]
    rates = [op.value["flops_per_s"] for op in points]
    low_x, high_x = _powers([*intensities, *(peak / bandwidth for peak in peaks.values())])
    low_y, high_y = _powers([*rates, *peaks.values()])

    def x(intensity: float) -> float:
        share = (math.log10(intensity) - low_x) / (high_x - low_x)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(rate: float) -> float:
        share = (math.log10(rate) - low_y) / (high_y - low_y)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def roof(peak: float) -> str:
        ridge = peak / bandwidth
        least = max(10.0**low_x, 10.0**low_y / bandwidth)
        corners = (least, least * bandwidth), (ridge, peak), (10.0**high_x, peak)
        return " ".join(f"{x(a):.2f},{y(b):.2f}" for a, b in corners)

    def label(dtype: str, peak: Figures) -> Html:
        place = {"x": f"{_WIDTH - _RIGHT:.0f}", "y": f"{y(peak.value) - 6:.2f}"}
        words = f"peak of {dtype}, ", peak.svg_number(_teraflops)
        return element("text", *words, text_anchor="end", **place)

    marks = (
        _mark(op, x(intensity), y(op.value["flops_per_s"]))
        for op, intensity in sorted(
            zip(points, intensities, strict=True), key=lambda one: -one[0].value["total_s"]
        )
    )
    return element(
        "svg",
        *_grid(x, range(low_x, high_x + 1), is_x=True),
        *_grid(y, range(low_y, high_y + 1), is_x=False),
        *(element("polyline", points=roof(peak), class_="roof") for peak in peaks.values()),
        *(label(dtype, limits.at("peak_flops_per_s", dtype)) for dtype in peaks),
        *marks,
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        class_="roofline",
        role="img",
        aria_label="Roofline of the ops with FLOPs; the table of operators has the same numbers.",
    )


def _powers(values: list[float]) -> tuple[int, int]:
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)


def _grid(place: Any, powers: range, *, is_x: bool) -> Iterator[Html]:
    for power in powers:
        at = f"{place(10.0**power):.2f}"
        if is_x:
            yield element(
                "line", x1=at, x2=at, y1=f"{_TOP}", y2=f"{_HEIGHT - _BOTTOM}", class_="grid"
            )
            yield element(
                "text",
                f"{10.0**power:g}",
                class_="tick",
                x=at,
                y=f"{_HEIGHT - _BOTTOM + 18}",
                text_anchor="middle",
            )
        else:
            yield element(
                "line", x1=f"{_LEFT}", x2=f"{_WIDTH - _RIGHT}", y1=at, y2=at, class_="grid"
            )
            yield element(
                "text",
                f"{10.0 ** (power - 12):g}",
                class_="tick",
                x=f"{_LEFT - 8}",
                y=at,
                text_anchor="end",
                dominant_baseline="middle",
            )
    if is_x:
        yield element(
            "text",
            "arithmetic intensity, FLOP per byte",
            x=f"{(_LEFT + _WIDTH) / 2}",
            y=f"{_HEIGHT - 6}",
            text_anchor="middle",
        )
    else:
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        yield element(
            "text",
            "reached rate, TFLOP/s",
            transform=f"translate(16 {middle}) rotate(-90)",
            text_anchor="middle",
        )


def _mark(op: Figures, x: float, y: float) -> Html:
    colour, shape = _MARKS.get(op.value["limit"] or "", _OTHER)
    size = 3.5 + 16 * math.sqrt(max(op.value["share"], 0.0))
    words = (
        *(op.at("op").words, " (", op.at("phase").words, "), ", op.at("shape").words, ": "),
        op.at("flops").share_of(op.at("bytes"), "{:.4g}".format),
        *(" FLOP per byte, ", op.at("flops_per_s").number(_teraflops), ", "),
        *(op.at("share").percent, " of the iteration"),
    )
    return element(
        "path",
        element("title", *words),
        d=_SHAPES[shape],
        transform=f"translate({x:.2f} {y:.2f}) scale({size:.3f})",
        fill=colour,
        class_="mark",
    )
