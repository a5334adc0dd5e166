"""The page of a real iteration beside the simulated one."""

from __future__ import annotations

from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import element
from simtrain.render.html.view import view_html
from simtrain.traces.study import TraceComparison
from simtrain.traces.view import lanes_view, trace_view


def trace_document(comparison: TraceComparison, command: str) -> HtmlDocument:
    """Build the page; `command` prints the same in a terminal."""
    lead = element("p", "A real iteration, as PyTorch's profiler saw it, beside the simulated one.")
    sections = [
        HtmlSection("timelines", "Both timelines", view_html(lanes_view(comparison))),
        HtmlSection("differences", "Differences", view_html(trace_view(comparison), command)),
    ]
    return HtmlDocument(f"{comparison.scenario} against a trace", lead, sections)
