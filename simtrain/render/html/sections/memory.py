"""Peak memory of each stage by component."""

from __future__ import annotations

from simtrain.iteration.memory.report import COMPONENT_LABELS
from simtrain.render.figures.iteration_memory import COMPONENT_FILLS
from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, attribute, element, joined, legend, swatch, table
from simtrain.render.html.figures import Figures
from simtrain.render.html.sections import of_each_run

_COLOURS = {name: colour for name, (colour, _) in COMPONENT_FILLS.items()}


def memory_section(runs: Figures) -> Section:
    """Build the section: a table of stages for each iteration, with a bar of components per row."""
    components = legend(
        (swatch(colour), COMPONENT_LABELS[name]) for name, colour in _COLOURS.items()
    )
    body = joined(components, of_each_run(runs, _memory))
    return Section("memory", "Memory", body, ("memory.css",))


def _memory(run: Figures) -> Html:
    memory = run.at("result", "memory")
    capacity = memory.at("capacity_bytes")
    scale = max(capacity.value, *(stage["peak_bytes"] for stage in memory.at("stages").value))
    rows = [_row(stage, capacity, scale) for stage in memory.at("stages").each()]
    caption = joined(
        "Peak memory of a GPU of each stage. The mark shows the capacity of a GPU, ",
        capacity.bytes,
        ". The last column is the pass that reaches the peak (F forward, B backward).",
    )
    headings = ("stage", ">peak", ">of capacity", "components", "pass")
    return table(caption, headings, rows, class_="peaks")


def _row(stage: Figures, capacity: Figures, scale: int) -> tuple[str, ...]:
    peak, components = stage.at("peak_bytes"), stage.at("components_bytes")
    parts = [
        element(
            "span",
            style=f"--fill:{colour};width:{100 * components.value[name] / scale:.4f}%",
            **attribute("title", f"{COMPONENT_LABELS[name]}: ", components.at(name).bytes),
        )
        for name, colour in _COLOURS.items()
    ]
    mark = element("i", style=f"left:{100 * capacity.value / scale:.4f}%")
    bar = element("div", *parts, mark, class_="stack", aria_hidden="true")
    number, action = stage.at("stage").count, stage.at("peak_action").words
    return number, peak.bytes, peak.share_of(capacity), bar, action
