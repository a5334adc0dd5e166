"""Timeline of an iteration and its memory over time: two canvases with a common time axis."""

from __future__ import annotations

from simtrain.render.figures.timeline import FILLS
from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, attribute, element, joined, legend, swatch
from simtrain.render.html.figures import Figures

_PEAKS = " over time. The section Memory lists the peaks."
_HELP = (
    "Drag to move. Turn the wheel with Ctrl, or pinch, to zoom. Keys: + and − zoom, zero shows the "
    "whole iteration, Shift with the left or right arrow moves. Up and down select a stage, left "
    "and right a bar. Bars thinner than a pixel mix their colours in proportion to their time."
)


def timeline_section(runs: Figures) -> Section:
    """Build the section: a figure for each iteration. All show the same window of time."""
    activities = runs.at(0, "timeline", "activities").value
    fills = {name: FILLS[name][0] for name in activities} | {"idle": "var(--track)"}
    colours = legend((swatch(fill), name) for name, fill in fills.items())
    blocks = (_figure(run, is_named=len(runs.value) > 1) for run in runs.each())
    body = joined(colours, *blocks, element("p", _HELP, class_="soft screen-only"))
    title = "Timeline and memory over time"
    return Section("timeline", title, body, ("timeline.css",), ("timeline.js",))


def _figure(run: Figures, *, is_named: bool) -> Html:
    name = run.at("name").words
    label = (
        *("Timeline of ", name, " with its bars. Pipeline stages: "),
        run.at("operators", "num_stages").count,
        ". Use the arrow keys to read bars one by one.",
    )
    buttons = (
        ("in", "+", "Zoom in"),
        ("out", "\u2212", "Zoom out"),
        ("all", "Whole iteration", "Show the whole iteration"),
    )
    tools = element(
        "div",
        *(
            element("button", text, type="button", data_zoom=zoom, aria_label=words)
            for zoom, text, words in buttons
        ),
        class_="tools screen-only",
    )
    return element(
        "figure",
        element("figcaption", name) if is_named else "",
        tools,
        element(
            "canvas",
            class_="bars",
            tabindex="0",
            role="application",
            aria_roledescription="timeline",
            **attribute("aria_label", *label),
        ),
        element(
            "canvas",
            class_="memory",
            role="img",
            **attribute("aria_label", "Memory of stages of ", name, _PEAKS),
        ),
        element("ul", class_="legend lines"),
        element("p", class_="readout", role="status", aria_live="polite"),
        class_="timeline",
        data_run=str(run.path[-1]),
    )
