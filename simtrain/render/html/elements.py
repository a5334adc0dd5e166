"""Build HTML elements from text, which is escaped exactly once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape, unescape

_TO_THE_RIGHT = escape(">")
_EMPTY = {"input", "meta", "link", "br", "hr", "col"}


class Html(str):
    """Text that is already HTML. Any other text is escaped when it becomes part of an element."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | bool) -> Html:
    """Return an element.

    Args:
        tag: name of the element.
        children: content in order; text that is not `Html` is escaped.
        attributes: `data_path` writes `data-path`, and `class_` writes `class`. True writes an
            attribute without a value; False omits the attribute.
    """
    head = tag + "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _EMPTY:
        return Html(f"<{head}>")
    return Html(f"<{head}>{joined(*children)}</{tag}>")


def joined(*children: str, separator: str = "") -> Html:
    """Concatenate text with a separator between the parts, and escape what is not `Html`."""
    parts = (child if isinstance(child, Html) else escape(child) for child in children)
    return Html(escape(separator).join(parts))


def _attribute(name: str, value: str | bool) -> str:
    written = name.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {written}" if value else ""
    return f' {written}="{escape(value)}"'


def attribute(name: str, *words: str) -> dict[str, str]:
    """Return an attribute of plain text, such as a title, with the numbers in it.

    The text is the value of the attribute. Another attribute, `data-title` for a title, has the
    same words as HTML, if they contain numbers.
    """
    html = joined(*words)
    plain = {name: plain_text(html)}
    return plain | {f"data_{name}": html} if "data-" in html else plain


def plain_text(html: Html) -> str:
    """Return the text of HTML without its elements."""
    return unescape(re.sub(r"<[^>]*>", "", html))


def card(label: str, value: str, remark: str = "") -> Html:
    """Return a card with a number in large type."""
    parts = {"label": label, "value": value, "remark": remark}
    blocks = (element("div", text, class_=name) for name, text in parts.items())
    return element("div", *blocks, class_="card")


def swatch(fill: str) -> Html:
    """Return a small square of a colour, for legends."""
    return element("span", class_="swatch", style=f"--fill:{fill}")


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """Return a list of symbols, such as swatches, and what they stand for."""
    return element("ul", *(element("li", *entry) for entry in entries), class_="legend")


def scroll_box(content: Html, label: str) -> Html:
    """Return content in a box that scrolls sideways on narrow screens, so it takes the focus."""
    name = attribute("aria_label", label)
    return element("div", content, class_="scroll", tabindex="0", role="region", **name)


def table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], **attributes: str
) -> Html:
    """Return a table in a box that scrolls sideways on narrow screens.

    Args:
        caption: what the table shows.
        headings: headings of the columns; a leading ">" (or, in HTML, "&gt;") aligns the column to
            the right.
        rows: cells; the first cell of a row is its heading.
        attributes: attributes of the `<table>` element.
    """
    cells = [joined(heading) for heading in headings]
    classes = ["number" if heading.startswith(_TO_THE_RIGHT) else "text" for heading in cells]
    head = (
        element("th", Html(heading.removeprefix(_TO_THE_RIGHT)), scope="col", class_=kind)
        for heading, kind in zip(cells, classes, strict=True)
    )
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *(_row(cells, classes) for cells in rows)),
        **attributes,
    )
    return scroll_box(whole, caption)


def _row(cells: Sequence[str], classes: Sequence[str]) -> Html:
    first, *others = cells
    return element(
        "tr",
        element("th", first, scope="row", class_=classes[0]),
        *(element("td", cell, class_=kind) for cell, kind in zip(others, classes[1:], strict=True)),
    )
