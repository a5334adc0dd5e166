"""The page of all schedules that a pipeline allows."""

from __future__ import annotations

from simtrain.render.html import timeline
from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import element
from simtrain.render.html.view import view_html
from simtrain.studies.schedule_comparison import ScheduleComparison
from simtrain.views.schedules import schedules_view


def schedules_document(comparison: ScheduleComparison, scenario: str, command: str) -> HtmlDocument:
    """Build the page; `command` prints the same in a terminal."""
    lead = element("p", "One iteration with each schedule that the pipeline allows.")
    results = {trial.name: trial.result for trial in comparison.trials}
    table = view_html(schedules_view(comparison, scenario, draws=False), command)
    figures = timeline.timelines(results)
    title = "Timelines and memory over time"
    sections = [
        HtmlSection("schedules", "Time, bubble and memory", table),
        HtmlSection("timelines", title, figures, timeline.STYLES, timeline.SCRIPTS),
    ]
    return HtmlDocument(f"Schedules of {scenario}", lead, sections)
