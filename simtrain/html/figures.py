"""Numbers of a page: each is looked up in the page's data and names its place there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from simtrain.html.elements import Html, element
from simtrain.units import format_bytes, format_seconds

Key = str | int


@dataclass(frozen=True, slots=True)
class Figures:
    """A part of a page's data.

    A number on the page is a `<data>` element: its value in full precision, the place of the value
    in the data (a JSON pointer, RFC 6901), and the rounded text that a person reads. A page shows
    no number that its data lack.

    Args:
        data: all data of the page, as JSON has them.
        path: keys that lead from there to this part.
    """

    data: Any
    path: tuple[Key, ...] = ()

    def at(self, *keys: Key) -> Figures:
        """The part that further keys lead to."""
        return Figures(self.data, (*self.path, *keys))

    def each(self) -> Iterator[Figures]:
        """The items of a list."""
        for number in range(len(self.value)):
            yield self.at(number)

    @property
    def value(self) -> Any:
        """The data of this part."""
        found = self.data
        for key in self.path:
            found = found[key]
        return found

    @property
    def pointer(self) -> str:
        """The place of this part as a JSON pointer."""
        keys = (str(key).replace("~", "~0").replace("/", "~1") for key in self.path)
        return "".join(f"/{key}" for key in keys)

    def number(self, text: Callable[[Any], str]) -> Html:
        """The number of this part, as a person reads it."""
        return element("data", text(self.value), value=repr(self.value), data_at=self.pointer)

    @property
    def seconds(self) -> Html:
        """The number as a duration."""
        return self.number(format_seconds)

    @property
    def bytes(self) -> Html:
        """The number as an amount of memory."""
        return self.number(format_bytes)

    @property
    def percent(self) -> Html:
        """The number, a fraction, in percent."""
        return self.number(lambda share: f"{share:.1%}")

    @property
    def count(self) -> Html:
        """The number with separated thousands, without decimals."""
        return self.number(lambda number: f"{number:,.0f}")

    def share_of(self, whole: Figures) -> Html:
        """The number as a share of another one, in percent."""
        share = self.value / whole.value if whole.value else 0.0
        return element(
            "data",
            f"{share:.1%}",
            value=repr(share),
            data_at=self.pointer,
            data_of=whole.pointer,
        )
