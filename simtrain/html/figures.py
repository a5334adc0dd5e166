"""Numbers on a page. Each is read from the page's data and states its place there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from simtrain.html.elements import Html, element
from simtrain.units import format_bytes, format_seconds, with_micro_sign

Key = str | int


def seconds_text(seconds: float) -> str:
    """Format a duration with four digits, such as "37.83 s" or "2 µs"."""
    return with_micro_sign(format_seconds(seconds))


@dataclass(frozen=True, slots=True)
class Figures:
    """A part of a page's data, or one number in it.

    A number on the page is a `<data>` element with the value in full precision, the place of the
    value in the data (a JSON pointer, RFC 6901), and the rounded text that a person reads. A page
    shows only numbers that its data contain.

    Args:
        data: all data of the page, of the types that JSON has.
        path: keys from the root of the data to this part.
    """

    data: Any
    path: tuple[Key, ...] = ()

    def at(self, *keys: Key) -> Figures:
        """Return the part below this one at the given keys."""
        return Figures(self.data, (*self.path, *keys))

    def each(self) -> Iterator[Figures]:
        """Yield the items of this list."""
        for number in range(len(self.value)):
            yield self.at(number)

    @property
    def value(self) -> Any:
        """Data of this part."""
        found = self.data
        for key in self.path:
            found = found[key]
        return found

    @property
    def pointer(self) -> str:
        """Place of this part in the data, as a JSON pointer."""
        keys = (str(key).replace("~", "~0").replace("/", "~1") for key in self.path)
        return "".join(f"/{key}" for key in keys)

    def number(self, text: Callable[[Any], str]) -> Html:
        """Return a `<data>` element of this number, shown as `text` formats it."""
        return element("data", text(self.value), value=repr(self.value), data_at=self.pointer)

    @property
    def seconds(self) -> Html:
        """The number as a duration, with "µs" for microseconds."""
        return self.number(seconds_text)

    @property
    def bytes(self) -> Html:
        """The number as bytes, in a binary unit."""
        return self.number(format_bytes)

    @property
    def percent(self) -> Html:
        """The number, a fraction of 1, as a percentage."""
        return self.number(lambda share: f"{share:.1%}")

    @property
    def count(self) -> Html:
        """The number as an integer with thousands separators."""
        return self.number(lambda number: f"{number:,.0f}")

    def share_of(self, whole: Figures) -> Html:
        """Return this number divided by another one, as a percentage."""
        share = self.value / whole.value if whole.value else 0.0
        return element(
            "data",
            f"{share:.1%}",
            value=repr(share),
            data_at=self.pointer,
            data_of=whole.pointer,
        )
