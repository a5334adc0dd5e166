"""The report on a sweep: its pictures, and the front of time and memory."""

from __future__ import annotations

import base64
import shlex

from simtrain.render.figures import style
from simtrain.render.figures.sweep import SweepPictures, SweepResults, plots_view
from simtrain.render.html.document import HtmlDocument, HtmlSection
from simtrain.render.html.elements import element, joined
from simtrain.render.html.view import view_html

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
