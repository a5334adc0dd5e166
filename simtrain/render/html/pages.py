"""Pages of studies, each a view or two: searches, plans, whole trainings, schedules, notebooks."""

from __future__ import annotations

import base64
import shlex

from simtrain.iteration.report.result import Result
from simtrain.render.figures import style
from simtrain.render.figures.sweep import SweepPictures, SweepResults, plots_view
from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import Html, element, joined
from simtrain.render.html.timeline import timelines
from simtrain.render.html.view import part_html, view_html
from simtrain.studies.comparison import ScheduleComparison
from simtrain.views.result import result_view
from simtrain.views.schedules import schedules_view
from simtrain.views.view import Heading, Headline, SchedulePicture, TimelinePicture, View

_NOTEBOOK_STYLES = """
.simtrain .facts { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 0.1rem 1rem; }
.simtrain .facts dt { font-weight: 600; }
.simtrain .facts dd { margin: 0; }
.simtrain caption, .simtrain th.text, .simtrain td.text { text-align: left; }
.simtrain caption, .simtrain .soft { opacity: 0.75; }
.simtrain .number { text-align: right; font-variant-numeric: tabular-nums; }
.simtrain td.shares { min-width: 7rem; vertical-align: middle; }
.simtrain .share { height: 0.8rem; background: #0072b2; }
.simtrain p { margin: 0.2rem 0; }
"""


def study_document(view: View) -> HtmlDocument:
    """Build the page of a view that begins with its title and says everything."""
    title, *parts = view.shown
    assert isinstance(title, Heading), "the view of a study with a page begins with its title"
    line = part_html(view.headline, "") if view.headline else ""
    lead = joined(line, element("p", "Select a number to see its exact value."))
    return HtmlDocument(title.text, lead, [HtmlSection("answer", "Answer", view_html(View(parts)))])


def schedules_document(comparison: ScheduleComparison, command: str) -> HtmlDocument:
    """Build the page of all schedules of a pipeline; `command` prints it in a terminal."""
    words = element("p", "One iteration with each schedule that the pipeline allows.")
    lead = joined(part_html(Headline(comparison.headline), ""), words)
    results = {trial.name: trial.result for trial in comparison.trials}
    table = view_html(schedules_view(comparison, draws=False), command)
    sections = [
        HtmlSection("schedules", "Time, bubble and memory", table),
        HtmlSection("timelines", "Timelines and memory over time", timelines(results)),
    ]
    return HtmlDocument(f"Schedules of {comparison.base.name}", lead, sections)


def result_html(result: Result) -> str:
    """Return what `simtrain run` prints for a notebook, without pictures that need scripts.

    Its styles touch nothing else in the notebook.
    """
    pictures = TimelinePicture, SchedulePicture
    parts = [part for part in result_view(result).parts if not isinstance(part, pictures)]
    styles = element("style", Html(_NOTEBOOK_STYLES))
    return str(element("div", styles, view_html(View(parts)), class_="simtrain"))


_TITLES = {"heat_map": "Heat map", "pareto": "Front of time and memory", "scaling": "Scaling"}


def sweep_document(results: SweepResults) -> HtmlDocument:
    """Build the report on a sweep."""
    pictures, folder = SweepPictures.of(results), str(results.folder)
    ran = sum(row["status"] == "ok" for row in results.rows)
    lead = f"{ran:,} of {len(results.rows):,} points ran. Select a number to see its exact value."
    sections = []
    for name, figure in pictures.figures().items():
        title = _TITLES[name]
        data = base64.b64encode(style.png_bytes(figure)).decode()
        picture = element("img", src=f"data:image/png;base64,{data}", alt=title)
        if name == "pareto":
            command = f"simtrain sweep {shlex.quote(folder)}"
            picture = joined(picture, view_html(plots_view(pictures), command))
        sections.append(HtmlSection(name.replace("_", "-"), title, picture))
    profiles = results.header.get("profiles", {}).items()
    foot = joined(*(element("p", f"profile {name}, SHA-256 {digest}") for name, digest in profiles))
    title = f"Sweep {results.header.get('name')}"
    return HtmlDocument(title, element("p", lead), sections, foot=foot)
