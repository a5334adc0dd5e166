"""Bars of parts: the causes of an iteration's time, and the memory of each stage."""

from __future__ import annotations

from simtrain.iteration.memory.report import COMPONENT_LABELS, MemoryReport
from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.result import Result
from simtrain.render.figures.breakdown import FILLS
from simtrain.render.figures.iteration_memory import COMPONENT_FILLS
from simtrain.render.html.elements import Html, element, joined, legend, scroll_box, swatch
from simtrain.units import format_bytes

CAUSES = {
    name.removesuffix("_s"): (label, fill)
    for (name, label), fill in zip(CAUSE_LABELS.items(), FILLS, strict=True)
}
"""Label and colour of each cause, by its name in the JSON."""
_COLOURS = {name: colour for name, (colour, _) in COMPONENT_FILLS.items()}


def breakdown_bar(result: Result) -> Html:
    """Return a bar of an iteration's causes and their legend; the table below has the numbers."""
    seconds = result.breakdown_s
    shown = [name for name in CAUSES if seconds[name]]
    entries = ((swatch(CAUSES[name][1]), CAUSES[name][0]) for name in shown)
    parts = (
        element(
            "span",
            style=f"--fill:{CAUSES[name][1]};flex-grow:{seconds[name]!r}",
            title=CAUSES[name][0],
        )
        for name in shown
    )
    return joined(element("div", *parts, class_="bar", aria_hidden="true"), legend(entries))


def memory_bars(report: MemoryReport) -> Html:
    """Return a bar of components for each stage, with a mark at the capacity of a GPU."""
    scale = max(report.capacity_bytes, *(stage.peak_bytes for stage in report.stages))
    mark = element("i", style=f"left:{100 * report.capacity_bytes / scale:.4f}%")
    rows = []
    for stage in report.stages:
        parts = (
            element(
                "span",
                style=f"--fill:{colour};width:{100 * stage.components_bytes[name] / scale:.4f}%",
                title=f"{COMPONENT_LABELS[name]}: {format_bytes(stage.components_bytes[name])}",
            )
            for name, colour in _COLOURS.items()
        )
        stack = element("div", *parts, mark, class_="stack")
        rows.append(joined(element("span", f"{stage.stage}"), stack))
    components = legend(
        (swatch(colour), COMPONENT_LABELS[name]) for name, colour in _COLOURS.items()
    )
    stacks = scroll_box(element("div", *rows, class_="stacks"), "Peak memory of each stage")
    note = element("p", "One bar per stage. The mark is the capacity of a GPU.", class_="soft")
    return joined(components, stacks, note)
