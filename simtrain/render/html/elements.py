"""Build HTML elements from text, which is escaped exactly once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from simtrain.errors import printable

_BREAKS = re.compile(r"([_./:\\-])(?=\w)")
_EMPTY = {"img", "input", "meta", "link", "br", "hr", "col", "wbr"}


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
    parts = (child if isinstance(child, Html) else _escaped(child) for child in children)
    return Html(_escaped(separator).join(parts))


def breakable(text: str) -> Html:
    """Return a name or a path that a narrow screen breaks after "_", ".", "/" and the like."""
    return Html(_BREAKS.sub(r"\1<wbr>", _escaped(text)))


def _attribute(name: str, value: str | bool) -> str:
    written = name.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {written}" if value else ""
    return f' {written}="{_escaped(value)}"'


def _escaped(text: str) -> str:
    return escape(printable(text))


def number(value: Any, text: str) -> Html:
    """Return a number as people read it, with its exact value; text is only escaped.

    Scripts find exact values in `<data>` elements: a selected number shows its own.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return joined(text)
    return element("data", text, value=repr(value))


def json_text(data: Mapping[str, Any]) -> Html:
    """Return data as JSON for a `<script>` element. Escaped `<` cannot end the element early."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c"))


def swatch(fill: str) -> Html:
    """Return a small square of a colour, for legends."""
    return element("span", class_="swatch", style=f"--fill:{fill}")


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """Return a list of symbols, such as swatches, and what they stand for."""
    return element("ul", *(element("li", *entry) for entry in entries), class_="legend")


def scroll_box(content: Html, label: str) -> Html:
    """Return content in a box that scrolls sideways on narrow screens, so it takes the focus."""
    place = {"tabindex": "0", "role": "region", "aria_label": label}
    return element("div", content, class_="scroll", **place)
