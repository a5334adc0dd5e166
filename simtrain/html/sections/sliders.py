"""Sliders of a report: the iteration time on a faster or slower cluster, computed in the page."""

from __future__ import annotations

from typing import Any

from simtrain.html.document import Section
from simtrain.html.elements import Html, attribute, card, element, joined
from simtrain.html.figures import Figures
from simtrain.html.sections import of_each_run

_INTRODUCTION = (
    "Move a slider to compute the iteration time again, by the longest path through its tasks as "
    "in simtrain. The scenario and the order of tasks do not change. Each collective uses the "
    "algorithm that is fastest on the changed cluster."
)
_NO_SCRIPTS = "The sliders need JavaScript, which this browser does not run."


def sliders_section(runs: Figures) -> Section:
    """Build the section: sliders for the rates, bandwidths and latencies of each cluster."""
    body = joined(
        element("p", _INTRODUCTION),
        element("noscript", element("p", _NO_SCRIPTS)),
        of_each_run(runs, _sliders),
    )
    styles, scripts = ("answer.css", "sliders.css"), ("engine.js", "sliders.js")
    return Section("sliders", "A faster or slower cluster", body, styles, scripts)


def _sliders(run: Figures) -> Html:
    data, name = run.at("sliders").value, run.at("name").words
    time = run.at("result", "iteration_time_s").seconds
    base = str(data["base"])
    anchor = f"sliders{run.pointer.replace('/', '-')}"
    rows = [
        _slider(one, f"{anchor}-{one.value['name']}", data)
        for one in run.at("sliders", "sliders").each()
    ]
    mark = element("datalist", element("option", value=base), id=f"{anchor}-base")
    cards = element(
        "div",
        _card("Iteration time", "time", time, joined(time, " on the simulated cluster")),
        _card("Change", "change", "none"),
        _card(
            "MFU", "mfu", run.at("result", "mfu").percent, "of the peak at the chosen compute rate"
        ),
        class_="cards",
        role="status",
    )
    return element(
        "form",
        element("fieldset", element("legend", "Cluster"), *rows),
        mark,
        element("button", "Reset", type="reset"),
        cards,
        class_="sliders",
        data_run=run.pointer,
        hidden=True,
        **attribute("aria_label", "Cluster of ", name),
    )


def _slider(slider: Figures, anchor: str, data: dict[str, Any]) -> Html:
    """Build a slider, with its factor and the resulting rate, bandwidth or latency as text."""
    label, base = slider.value["label"], data["base"]
    words = slider.at("positions", base).sentence("text")
    return element(
        "div",
        element("label", label[0].upper() + label[1:], for_=anchor),
        element(
            "input",
            type="range",
            id=anchor,
            name=slider.value["name"],
            min="0",
            max=str(len(data["factors"]) - 1),
            value=str(base),
            list=f"{anchor.rsplit('-', 1)[0]}-base",
            data_slider=slider.pointer,
            **attribute("aria_valuetext", words),
        ),
        element("output", words, for_=anchor),
        class_="slider",
    )


def _card(label: str, name: str, value: str, remark: str = "") -> Html:
    """Build a card whose value the script replaces."""
    return card(label, element("output", value, name=name), remark)
