"""Assumptions behind the figures: all settings, settings without effect, what is not modelled."""

from __future__ import annotations

from simtrain.html.document import Section
from simtrain.html.elements import Html, element, joined, table
from simtrain.html.figures import Figures

_NOT_MODELLED = (
    "Differences between GPUs and between runs, congestion between jobs, failures, checkpoints, "
    "data loading, and Python work on the host other than launching kernels."
)


def assumptions_section(runs: Figures) -> Section:
    """Build the section: the settings of each iteration, including its software stack."""
    blocks = [_assumptions(run, is_named=len(runs.value) > 1) for run in runs.each()]
    not_modelled = element("p", element("strong", "Not modelled: "), _NOT_MODELLED)
    return Section("assumptions", "Assumptions", joined((not_modelled, *blocks)))


def named_setting(setting: Figures) -> Html:
    """Return the dotted name of a setting, which may have digits."""
    return element("code", setting.key)


def _assumptions(run: Figures, *, is_named: bool) -> Html:
    result = run.at("result")
    unused = [element("li", one.words) for one in result.at("without_effect").each()]
    listed = [element("ul", *unused)] if unused else []
    rows = [(named_setting(one), one.setting) for one in result.at("settings").each()]
    caption = "Settings of the scenario, with defaults resolved"
    name = [element("h3", run.at("name").words)] if is_named else []
    facts = element(
        "p",
        "Software stack: ",
        result.at("software").words,
        ". Settings that the scenario does not write have their defaults.",
    )
    folded = element(
        "details",
        element("summary", "All settings"),
        table(caption, ("field", "value"), rows),
    )
    return joined((*name, facts, *listed, folded))
