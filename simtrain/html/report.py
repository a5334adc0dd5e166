"""The report on simulated iterations: its data and its sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simtrain.html.document import Document
from simtrain.html.elements import Html, joined
from simtrain.html.figures import Figures
from simtrain.html.sections.answer import answer_section
from simtrain.html.sections.breakdown import breakdown_section
from simtrain.html.sections.sliders import sliders_section
from simtrain.provenance import provenance
from simtrain.report.result import Result
from simtrain.sliders.data import slider_data


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """An iteration of a report.

    Args:
        name: what the user called the scenario.
        result: its simulation.
        without_effect: remarks on settings that change nothing (`no_effect`).
    """

    name: str
    result: Result
    without_effect: Mapping[str, str] = field(default_factory=dict)


def report_document(runs: Sequence[ReportedRun]) -> Document:
    """Return the report on one or several iterations."""
    clusters = dict.fromkeys(run.result.scenario.cluster for run in runs)
    data = {
        "runs": [_data(run) for run in runs],
        "made_with": [provenance(one) for one in clusters],
    }
    figures = Figures(data)
    makers = answer_section, breakdown_section, sliders_section
    sections = [section(figures.at("runs")) for section in makers]
    title = " against ".join(run.name for run in runs)
    return Document(title, _lead(runs), sections, data)


def _data(run: ReportedRun) -> dict[str, Any]:
    """What the page shows of a run: the data of `simtrain run --json`, and more."""
    return {
        "name": run.name,
        "result": run.result.to_dict() | {"without_effect": dict(run.without_effect)},
        "fullest_stage": run.result.memory.fullest.stage,
        "sliders": slider_data(run.result),
    }


def _lead(runs: Sequence[ReportedRun]) -> Html:
    return joined(("One training iteration, simulated by simtrain.",))
