"""Pictures of matplotlib inside a page, in the colours of its theme."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simtrain.render.figures import style
from simtrain.render.html.elements import Html, element

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_THEMED = {"#000000": "currentColor", style.BLUE.lower(): "var(--accent)"}
"""Colours of text and lines that would be hard to see on a dark page."""
_SVG = re.compile(r"<svg\b.*</svg>", re.DOTALL)
_SIZE = re.compile(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>')


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
