"""A view in a notebook: its tables and words, without pictures that need scripts."""

from __future__ import annotations

from simtrain.iteration.report.result import Result
from simtrain.render.html.document import asset
from simtrain.render.html.elements import element
from simtrain.render.html.view import view_html
from simtrain.views.result import result_view
from simtrain.views.view import SchedulePicture, TimelinePicture, View

_PICTURES = TimelinePicture, SchedulePicture


def result_html(result: Result) -> str:
    """Return what `simtrain run` prints as HTML."""
    return notebook_html(result_view(result))


def notebook_html(view: View) -> str:
    """Return a view with its styles, which touch nothing else in the notebook."""
    parts = [part for part in view.parts if not isinstance(part, _PICTURES)]
    styles = element("style", asset("notebook.css"))
    return str(element("div", styles, view_html(View(parts)), class_="simtrain"))
