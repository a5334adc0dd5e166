"""The page of a study whose view says everything: a search, a plan."""

from __future__ import annotations

from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import element
from simtrain.render.html.view import view_html
from simtrain.views.view import Heading, View


def study_document(view: View) -> HtmlDocument:
    """Build the page of a view that begins with its title."""
    title, *parts = view.shown
    assert isinstance(title, Heading), "the view of a study with a page begins with its title"
    lead = element("p", "Select a number to see its exact value.")
    section = HtmlSection("answer", "Answer", view_html(View(parts)), ("answer.css",))
    return HtmlDocument(title.text, lead, [section])
