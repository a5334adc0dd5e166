"""Assumptions behind the figures: all settings, settings without effect, what is not modelled."""

from __future__ import annotations

from simtrain.render.html.document import Section
from simtrain.render.html.elements import Html, element, joined, table
from simtrain.render.html.figures import Figures
from simtrain.render.html.sections import of_each_run

_NOT_MODELLED = (
    "Differences between GPUs and between runs, congestion between jobs, failures, checkpoints, "
    "data loading, and Python work on the host other than launching kernels."
)


def assumptions_section(runs: Figures) -> Section:
    """Build the section: the settings of each iteration, including its software stack."""
    not_modelled = element("p", element("strong", "Not modelled: "), _NOT_MODELLED)
    body = joined(not_modelled, of_each_run(runs, _assumptions))
    return Section("assumptions", "Assumptions", body)


def _assumptions(run: Figures) -> Html:
    result = run.at("result")
    unused = [element("li", remark.words) for remark in result.at("without_effect").each()]
    listed = element("ul", *unused) if unused else ""
    rows = [
        (element("code", setting.key), setting.setting) for setting in result.at("settings").each()
    ]
    caption = "Settings of the scenario, with defaults resolved"
    facts = element(
        "p",
        "Software stack: ",
        result.at("software").words,
        ". Settings that the scenario does not write have their defaults.",
    )
    settings = table(caption, ("field", "value"), rows)
    folded = element("details", element("summary", "All settings"), settings)
    return joined(facts, listed, folded)
