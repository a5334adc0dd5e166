"""Write sections, data, styles and scripts to one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simtrain.base.output_folder import check_suffix, write_text
from simtrain.base.values import dataclass, field
from simtrain.render.html.elements import Html, breakable, element, json_text

ASSETS = Path(__file__).parent / "assets"
SUFFIXES = (".html", ".htm")
# Even if text of a scenario became markup, the browser would load and send nothing.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, slots=True)
class HtmlSection:
    """A section of a document.

    Args:
        anchor: id of the section, for links.
        title: heading.
        body: content below the heading.
    """

    anchor: str
    title: str
    body: Html


@dataclass(frozen=True, slots=True)
class HtmlDocument:
    """An HTML document.

    Args:
        title: title and first heading.
        lead: text below the title.
        sections: sections in order. A navigation bar at the top links to each.
        data: data in full precision. Scripts read them as `simtrain.data`.
        foot: text at the end.
        styles, scripts: files in addition to those of `assets`.
    """

    title: str
    lead: Html
    sections: Sequence[HtmlSection]
    data: Mapping[str, Any] = field(default_factory=dict)
    foot: str = ""
    styles: tuple[Path, ...] = ()
    scripts: tuple[Path, ...] = ()


def check_html_file(file: Path) -> None:
    """Check that the name of a file ends with `.html` or `.htm`.

    Raises:
        InputError: the name has another suffix (E117).
    """
    check_suffix(file, SUFFIXES, "reports")


def write_document(document: HtmlDocument, file: Path) -> None:
    """Write a document to a `.html` file, and replace an existing file.

    Raises:
        InputError: the suffix is unknown (E117), or the file cannot be written (E113).
    """
    check_html_file(file)
    write_text(file, document_text(document), "the report")


def document_text(document: HtmlDocument) -> str:
    """Return a document as the text of one HTML file; `base.js` defines what other scripts use."""
    sections = document.sections
    styles = ASSETS / "base.css", *document.styles
    scripts = ASSETS / "base.js", ASSETS / "timeline.js", *document.scripts
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", document.title),
        *(element("style", _text(file)) for file in styles),
    )
    body = element(
        "body",
        element("a", "Skip to the answer", href="#main", class_="skip"),
        element("header", element("h1", breakable(document.title)), document.lead),
        _contents(sections),
        element("main", *map(_section, sections), id="main"),
        element("footer", document.foot),
        element("script", json_text(document.data), type="application/json", id="data"),
        *(element("script", _text(file)) for file in scripts),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _text(file: Path) -> Html:
    return Html("\n" + file.read_text(encoding="utf-8"))


def _section(section: HtmlSection) -> Html:
    label = f"{section.anchor}-title"
    heading = element("h2", section.title, id=label)
    return element("section", heading, section.body, id=section.anchor, aria_labelledby=label)


def _contents(sections: Sequence[HtmlSection]) -> Html:
    links = (
        element("li", element("a", section.title, href=f"#{section.anchor}"))
        for section in sections
    )
    return element("nav", element("ul", *links), aria_label="Sections")
