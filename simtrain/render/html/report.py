"""Build the report on simulated iterations from its data and sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from simtrain.base.provenance import provenance
from simtrain.render.html.document import Document, Section
from simtrain.render.html.elements import Html, element, joined
from simtrain.render.html.figures import Figures
from simtrain.render.html.number_sources import NUMBER_SOURCES
from simtrain.render.html.run_data import ReportedRun, run_data
from simtrain.render.html.sections.answer import answer_section
from simtrain.render.html.sections.assumptions import assumptions_section
from simtrain.render.html.sections.breakdown import breakdown_section
from simtrain.render.html.sections.comparison import comparison_section
from simtrain.render.html.sections.memory import memory_section
from simtrain.render.html.sections.operators import operators_section
from simtrain.render.html.sections.roofline import roofline_section
from simtrain.render.html.sections.sliders import sliders_section
from simtrain.render.html.sections.sources import sources_section
from simtrain.render.html.sections.timeline import timeline_section


def report_document(
    runs: Sequence[ReportedRun], comparison: Mapping[str, Any] | None = None
) -> Document:
    """Build the report on one or several iterations.

    Args:
        runs: the iterations.
        comparison: data that `simtrain compare --json` prints about them. Without it, no section
            says what the time depends on. Without curves of all runs, no section has sliders.
    """
    clusters = dict.fromkeys(run.result.scenario.cluster for run in runs)
    data = {
        "runs": [run_data(run) for run in runs],
        "comparison": comparison,
        "made_with": [provenance(cluster) for cluster in clusters],
        "number_sources": [*map(asdict, NUMBER_SOURCES)],
    }
    figures = Figures(data)
    names = [run.at("name").words for run in figures.at("runs").each()]
    title = joined(*names, separator=" against ")
    return Document(title, _lead(runs), _sections(figures), data, _foot(figures))


def _sections(figures: Figures) -> list[Section]:
    runs, compared = figures.at("runs"), figures.at("comparison")
    first = [breakdown_section(runs)]
    if compared.value:
        # Whoever compares asks first for the difference.
        place = 0 if compared.value["differences"] else 1
        first.insert(place, comparison_section(compared))
    if all(run["curves"] for run in runs.value):
        first.append(sliders_section(runs))
    return [
        answer_section(runs),
        *first,
        *(
            section(runs)
            for section in (
                timeline_section,
                memory_section,
                operators_section,
                roofline_section,
                sources_section,
                assumptions_section,
            )
        ),
    ]


def _lead(runs: Sequence[ReportedRun]) -> Html:
    words = "One training iteration" if len(runs) == 1 else "Training iterations"
    return element(
        "p", f"{words}, simulated by simtrain. Select a number to see its exact value and source."
    )


def _foot(figures: Figures) -> Html:
    lines = (
        element(
            "p",
            *("simtrain ", made.at("simtrain").words, " · hardware profile "),
            *(made.at("profile").words, " · SHA-256 "),
            element("code", made.at("profile_sha256").words),
        )
        for made in figures.at("made_with").each()
    )
    return joined(*lines)
