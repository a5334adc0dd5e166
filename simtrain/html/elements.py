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
    return Html(f"<{head}>{joined(children)}</{tag}>")


def joined(children: Iterable[str]) -> Html:
    """Concatenate children, and escape those that are not `Html`."""
    return Html("".join(one if isinstance(one, Html) else escape(one) for one in children))


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
    html = joined(words)
    plain = {name: plain_text(html)}
    return plain | {f"data_{name}": html} if "data-" in html else plain


def plain_text(html: Html) -> str:
    """Return the text of HTML without its elements."""
    return unescape(re.sub(r"<[^>]*>", "", html))


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
    cells = [joined((one,)) for one in headings]
    classes = ["number" if one.startswith(_TO_THE_RIGHT) else "text" for one in cells]
    head = joined(
        element("th", Html(one.removeprefix(_TO_THE_RIGHT)), scope="col", class_=kind)
        for one, kind in zip(cells, classes, strict=True)
    )
    body = joined(_row(cells, classes) for cells in rows)
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", head)),
        element("tbody", body),
        **attributes,
    )
    # A box that scrolls must be reachable by the keyboard.
    label = attribute("aria_label", caption)
    return element("div", whole, class_="scroll", tabindex="0", role="region", **label)


def _row(cells: Sequence[str], classes: Sequence[str]) -> Html:
    first, *others = cells
    return element(
        "tr",
        element("th", first, scope="row", class_=classes[0]),
        *(element("td", one, class_=kind) for one, kind in zip(others, classes[1:], strict=True)),
    )
