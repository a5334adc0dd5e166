"""Reads the HTML that simtrain writes."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from typing import Any

EMPTY = {"meta", "link", "br", "hr", "col", "input"}
"""Elements that have no end tag."""


@dataclass
class Parsed(HTMLParser):
    """The elements of a document, in order, and the text inside each."""

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
        """Attributes and text of the elements with these tags."""
        return [(about, "".join(text)) for tag, about, text in self.elements if tag in tags]

    @cached_property
    def data(self) -> Any:
        """The data that are embedded for scripts."""
        (text,) = (text for about, text in self.of("script") if about.get("id") == "data")
        return json.loads(text)


def parsed(text: str) -> Parsed:
    """Parse a document; every element that it opens must be closed."""
    found = Parsed()
    found.feed(text)
    found.close()
    assert not found._open
    return found
