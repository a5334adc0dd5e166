"""The report on a sweep: its pictures, and the front of time and memory."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from simtrain.render.figures import style
from simtrain.render.figures.sweep import SweepPictures, SweepResults, plots_view
from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import Html, element, joined
from simtrain.render.html.view import view_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_THEMED = {"#000000": "currentColor", style.BLUE.lower(): "var(--accent)"}
"""Colours of text and lines that would be hard to see on a dark page."""
_SVG = re.compile(r"<svg\b.*</svg>", re.DOTALL)
_SIZE = re.compile(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>')
_TITLES = {"heat_map": "Heat map", "pareto": "Front of time and memory", "scaling": "Scaling"}


def sweep_document(results: SweepResults) -> HtmlDocument:
    """Build the report on a sweep."""
    pictures, folder = SweepPictures.of(results, None, None, None), str(results.folder)
    ran = sum(row["status"] == "ok" for row in results.rows)
    lead = f"{ran:,} of {len(results.rows):,} points ran. Select a number to see its exact value."
    sections = []
    for name, figure in pictures.figures().items():
        title = _TITLES[name]
        picture = drawing(figure, name, title)
        if name == "pareto":
            command = f"simtrain sweep {shlex.quote(folder)}"
            picture = joined(picture, view_html(plots_view(pictures), command))
        sections.append(HtmlSection(name.replace("_", "-"), title, picture))
    profiles = results.header.get("profiles", {}).items()
    foot = joined(*(element("p", f"profile {name}, SHA-256 {digest}") for name, digest in profiles))
    title = f"Sweep {results.header.get('name')}"
    return HtmlDocument(title, element("p", lead), sections, foot=foot)


def drawing(figure: Figure, name: str, label: str) -> Html:
    """Return a figure as inline SVG, as wide as the page allows.

    Args:
        figure: a figure of `simtrain.render.figures`.
        name: prefix of its ids, which differ between the pictures of a page.
        label: what a screen reader says.
    """
    written = _SVG.search(style.svg_text(figure))
    assert written
    text = re.sub(r"<metadata>.*?</metadata>", "", written.group(), flags=re.DOTALL)
    for colour, themed in _THEMED.items():
        text = text.replace(colour, themed)
    # Ids of matplotlib are unique in a file, not in a page with several files.
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    attributes = element("svg", role="img", aria_label=label).removesuffix("></svg>")
    text = _SIZE.sub(lambda head: f"{attributes} {head.group(1)}>", text, count=1)
    # On narrow screens it scrolls sideways, so the keyboard must reach it.
    return element(
        "figure",
        element("div", Html(text), class_="drawing", tabindex="0", role="group", aria_label=label),
    )
