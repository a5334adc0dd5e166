"""Assumptions behind the figures: all settings, settings without effect, what is not modelled."""

from __future__ import annotations

from simtrain.html.document import Section
from simtrain.html.elements import Html, element, joined, table
from simtrain.html.figures import Figures
from simtrain.strict_yaml import as_scalar

_NOT_MODELLED = (
    "Differences between GPUs and between runs, congestion between jobs, failures, checkpoints, "
    "data loading, and Python work on the host other than launching kernels."
)


def assumptions_section(runs: Figures) -> Section:
    """Build the section: the settings of each iteration, including its software stack."""
    blocks = [_assumptions(run, is_named=len(runs.value) > 1) for run in runs.each()]
    not_modelled = element("p", element("strong", "Not modelled: "), _NOT_MODELLED)
    return Section("assumptions", "Assumptions", joined((not_modelled, *blocks)))


def _assumptions(run: Figures, *, is_named: bool) -> Html:
    remarks = run.at("result", "without_effect").value.values()
    listed = [element("ul", *(element("li", one) for one in remarks))] if remarks else []
    settings = run.at("scenario").value
    rows = [(element("code", name), as_scalar(value)) for name, value in settings.items()]
    caption = "Settings of the scenario, with defaults resolved"
    name = [element("h3", run.at("name").value)] if is_named else []
    stack = run.at("result", "software").value
    facts = element(
        "p",
        f"Software stack: {stack}. Settings that the scenario does not write have their defaults.",
    )
    folded = element(
        "details",
        element("summary", f"All {len(rows)} settings"),
        table(caption, ("field", "value"), rows),
    )
    return joined((*name, facts, *listed, folded))
