"""A parser of the HTML that simtrain writes."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from typing import Any

EMPTY = {"img", "meta", "link", "br", "hr", "col", "input", "wbr"}
"""Elements that have no end tag."""


@dataclass
class ParsedPage(HTMLParser):
    """Elements of a document, in order, with the text inside each."""

    elements: list[tuple[str, dict[str, str | None], list[str]]] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in EMPTY:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        for place in self._open:
            self.elements[place][2].append(data)

    def of(self, *tags: str) -> list[tuple[dict[str, str | None], str]]:
        """Return the attributes and the text of all elements with these tags."""
        return [(about, "".join(text)) for tag, about, text in self.elements if tag in tags]

    @cached_property
    def data(self) -> Any:
        """Return the data that the document embeds for its scripts."""
        (text,) = (text for about, text in self.of("script") if about.get("id") == "data")
        return json.loads(text)


def parsed(text: str) -> ParsedPage:
    """Parse a document, and assert that all its elements are closed."""
    found = ParsedPage()
    found.feed(text)
    found.close()
    assert not found._open
    return found
